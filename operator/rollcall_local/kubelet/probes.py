"""Probes of a container: what they ask, and what follows from the answers.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-probes
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollcall_protocol.wire.addresses import host_port

EAGER_SECONDS = 0.2
"""Between two questions to a container that does not answer well yet: here they cost nothing."""

Object = dict[str, Any]
Execute = Callable[[list[str]], Awaitable[int]]


@dataclass(slots=True)
class Verdict:
    """A probe's successes and failures in a row, and what they have led to."""

    probe: Object
    holds: bool = False
    failed: bool = False
    _successes: int = 0
    _failures: int = 0
    _failing_since: float = 0.0

    def took(self, *, good: bool, at: float) -> None:
        """One answer more, at a time in seconds."""
        if good:
            self._successes, self._failures = self._successes + 1, 0
        else:
            self._failing_since = self._failing_since if self._failures else at
            self._successes, self._failures = 0, self._failures + 1
        lasting = at - self._failing_since >= self.period * (self._threshold - 1)
        self.failed = self._failures >= self._threshold and lasting
        if self.failed:
            self.holds = False
        elif self._successes >= self.probe.get("successThreshold", 1):
            self.holds = True

    @property
    def _threshold(self) -> int:
        return int(self.probe.get("failureThreshold", 3))

    @property
    def period(self) -> float:
        """Seconds between two questions."""
        return float(self.probe.get("periodSeconds", 10))


async def ask(
    probe: Object,
    *,
    address: str,
    container: Object,
    execute: Execute,
    session: aiohttp.ClientSession,
) -> bool:
    """Whether the container answers well, in time; ValueError if it has no such port."""
    try:
        async with asyncio.timeout(float(probe.get("timeoutSeconds", 1))):
            if "httpGet" in probe:
                return await _get(probe["httpGet"], address, container, session)
            if "tcpSocket" in probe:
                port = _port(probe["tcpSocket"]["port"], container)
                _, writer = await asyncio.open_connection(address, port)
                writer.close()
                return True
            return await execute(list(probe["exec"]["command"])) == 0
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def _get(
    get: Object, address: str, container: Object, session: aiohttp.ClientSession
) -> bool:
    host = host_port(get.get("host") or address, _port(get["port"], container))
    url = f"{get.get('scheme', 'HTTP').lower()}://{host}{get.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in get.get("httpHeaders") or ()}
    async with session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer:
        return 200 <= answer.status < 400


def _port(value: int | str, container: Object) -> int:
    if isinstance(value, int):
        return value
    for port in container.get("ports") or ():
        if port.get("name") == value:
            return int(port["containerPort"])
    raise ValueError(f"container {container['name']} has no port {value}")


class ContainerProbes:
    """The three probes of one run of a container.

    `changed` is called when `started` or `ready` becomes another. `run` returns the field
    of the probe for whose failures the container must be started again.
    """

    def __init__(
        self,
        container: Object,
        *,
        asked: Callable[[Object], Awaitable[bool]],
        changed: Callable[[], None],
    ) -> None:
        self._asked, self._changed = asked, changed
        self._verdicts = {
            name: Verdict(container[name])
            for name in ("startupProbe", "livenessProbe", "readinessProbe")
            if container.get(name)
        }
        self.started = "startupProbe" not in self._verdicts
        self.ready = self.started and "readinessProbe" not in self._verdicts

    async def run(self) -> str:
        """Ask until one has failed too often."""
        startup = self._verdicts.get("startupProbe")
        if startup is not None:
            await self._ask(startup, until=lambda: startup.holds or startup.failed)
            if startup.failed:
                return "startupProbe"
            self.started = True
            self.ready = "readinessProbe" not in self._verdicts
            self._changed()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow_readiness())
            await self._until_dead()
            following.cancel()
        return "livenessProbe"

    async def _until_dead(self) -> None:
        verdict = self._verdicts.get("livenessProbe")
        if verdict is None:
            await asyncio.Event().wait()  # until cancelled
        else:
            await self._ask(verdict, until=lambda: verdict.failed)

    async def _follow_readiness(self) -> None:
        verdict = self._verdicts.get("readinessProbe")
        if verdict is None:
            return

        def took() -> bool:
            if verdict.holds != self.ready:
                self.ready = verdict.holds
                self._changed()
            return False

        await self._ask(verdict, until=took)

    async def _ask(self, verdict: Verdict, *, until: Callable[[], bool]) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(float(verdict.probe.get("initialDelaySeconds", 0)))
        while True:
            asked_at = clock()
            verdict.took(good=await self._asked(verdict.probe), at=clock())
            if until():
                return
            period = verdict.period if verdict.holds else min(verdict.period, EAGER_SECONDS)
            await asyncio.sleep(max(0.0, asked_at + period - clock()))
