"""The operator's side of one job's coordinator: a stream of snapshots in, rosters out.

A link lives as long as its job has a coordinator pod. It never decides anything: it keeps the
latest snapshot, says when it changed, and sees to it that the coordinator holds the roster that
the last reconcile wanted there.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer
from rollcall_protocol.env import MEMBERSHIP_PORT, OPERATOR_STREAM_ROUTE, ROSTER_ROUTE
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.json_codec import CodecError, encode
from rollcall_protocol.wire.messages import loads
from rollcall_protocol.wire.roster import Roster

log = logging.getLogger(__name__)

_LINE_LIMIT = 16 * 1024 * 1024


class LinkMetrics(Protocol):
    """Whoever counts what links do."""

    def link_connected(self, *, up: bool) -> None:
        """A stream was opened or ended."""

    def roster_pushed(self, result: str) -> None:
        """A push ended: accepted, refused or failed."""

    def snapshot_refused(self, reason: str) -> None:
        """A snapshot did not count: malformed, or of another pod than the one addressed."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Times are seconds. `progress_delay`: how long a mere step of training may wait."""

    port: int = MEMBERSHIP_PORT
    connect_timeout: float = 3.0
    silence_timeout: float = 15.0
    push_timeout: float = 5.0
    first_delay: float = 0.1
    max_delay: float = 1.0
    confirm_delay: float = 1.0
    progress_delay: float = 5.0


class LinkError(Exception):
    """The coordinator answered something that ends this connection; `final` needs a reconcile."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class CoordinatorLink:
    """One stream and one pusher, for one pod. Another pod or token is another link."""

    def __init__(
        self,
        *,
        pod: PodAddress,
        token: str,
        dialer: PodDialer,
        notify: Callable[[float], None],
        observer: LinkMetrics,
        settings: LinkSettings | None = None,
    ) -> None:
        """`notify(delay)` asks for a reconcile of the job in `delay` seconds."""
        self.pod = pod
        self._token = token
        self._dialer = dialer
        self._notify = notify
        self._observer = observer
        self._settings = settings or LinkSettings()
        self._snapshot: JobSnapshot | None = None
        self._wanted: Roster | None = None
        self._connected = False
        self._changed = asyncio.Event()
        self._poked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def snapshot(self) -> JobSnapshot | None:
        """The latest state that this pod reported; kept while the stream is away."""
        return self._snapshot

    @property
    def connected(self) -> bool:
        """Whether the stream is open now."""
        return self._connected

    def serves(self, pod: PodAddress, token: str) -> bool:
        """Whether this link is the one for `pod` and `token`."""
        return pod == self.pod and token == self._token

    def start(self) -> None:
        """Open the stream; call inside a running loop."""
        name = f"{self.pod.namespace}/{self.pod.name}"
        self._tasks = [
            asyncio.create_task(self._stream(), name=f"stream {name}"),
            asyncio.create_task(self._push(), name=f"push {name}"),
        ]

    def want(self, roster: Roster | None) -> None:
        """Have the coordinator hold `roster`; None leaves it alone."""
        if roster is not None and roster.coordinator_uid != self.pod.uid:
            return  # for a pod that has been replaced; the next reconcile makes a new link
        self._wanted = roster
        self._changed.set()

    def poke(self) -> None:
        """Something about the pod changed: try again now if there is no stream."""
        self._poked.set()

    async def close(self) -> None:
        """End both tasks and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hang_up()

    # --- the stream ----------------------------------------------------------------------------

    async def _stream(self) -> None:
        failures = 0
        while True:
            before = self._snapshot
            try:
                await self._read()
                problem = "the coordinator closed the stream"
            except (aiohttp.ClientError, TimeoutError, OSError, LinkError) as error:
                problem = f"{type(error).__name__}: {error}"
            failures = 0 if self._snapshot is not before else failures + 1
            if self._hang_up():
                log.info("Stream of %s ended: %s", self.pod.name, problem)
            else:
                log.debug("No stream of %s yet: %s", self.pod.name, problem)
            self._poked.clear()
            try:
                await asyncio.wait_for(self._poked.wait(), self._delay(failures))
            except TimeoutError:
                continue

    def _hang_up(self) -> bool:
        """Count the stream's end; False when none was open."""
        was, self._connected = self._connected, False
        if was:
            self._observer.link_connected(up=False)
        return was

    async def _read(self) -> None:
        settings = self._settings
        endpoint = await self._dialer.endpoint(self.pod, port=settings.port, token=self._token)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout, sock_read=settings.silence_timeout
        )
        async with self._dialer.session.get(
            endpoint.url + OPERATOR_STREAM_ROUTE, headers=endpoint.headers, timeout=timeout
        ) as response:
            if response.status != 200:
                raise LinkError(f"{response.status} {await _error_text(response)}")
            self._connected = True
            self._observer.link_connected(up=True)
            log.info("Stream of %s opened", self.pod.name)
            async for line in _lines(response.content):
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            snapshot = loads(line, JobSnapshot)
        except CodecError as error:
            self._observer.snapshot_refused("malformed")
            raise LinkError(f"malformed snapshot: {error}") from error
        if snapshot.pod_uid != self.pod.uid:
            self._observer.snapshot_refused("other_pod")
            raise LinkError(f"snapshot of pod {snapshot.pod_uid}, not {self.pod.uid}")
        before, self._snapshot = self._snapshot, snapshot
        if before is None or _shape(before) != _shape(snapshot):
            self._notify(0.0)
        elif before.progress != snapshot.progress:
            self._notify(self._settings.progress_delay)
        self._changed.set()

    # --- the roster ----------------------------------------------------------------------------

    def _due(self) -> Roster | None:
        """The roster to push now; None when it is held, or nobody is there to take it."""
        wanted, snapshot = self._wanted, self._snapshot
        if wanted is None or snapshot is None or not self._connected:
            return None
        held = (snapshot.roster_epoch, snapshot.roster_digest)
        return None if held == (wanted.epoch, wanted.digest) else wanted

    async def _push(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            failures = 0
            while (roster := self._due()) is not None:
                if await self._push_once(roster):
                    # The snapshot that confirms it may be on its way behind an older one.
                    failures, pause = 0, self._settings.confirm_delay
                else:
                    failures += 1
                    pause = self._delay(failures)
                await self._wait_for_other(roster, pause)

    async def _push_once(self, roster: Roster) -> bool:
        where = {"epoch": roster.epoch, "pod": self.pod.name}
        try:
            await self._put(roster)
        except (aiohttp.ClientError, TimeoutError, OSError, LinkError) as error:
            final = isinstance(error, LinkError) and error.final
            self._observer.roster_pushed("refused" if final else "failed")
            log.warning("Roster not taken: %s: %s", type(error).__name__, error, extra=where)
            if final:
                self._notify(1.0)
            return False
        self._observer.roster_pushed("accepted")
        log.info("Roster pushed", extra=where)
        return True

    async def _wait_for_other(self, roster: Roster, seconds: float) -> None:
        """Rest before the same roster is pushed again; another one goes at once."""
        try:
            async with asyncio.timeout(seconds):
                while self._due() == roster:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            return

    async def _put(self, roster: Roster) -> None:
        settings = self._settings
        endpoint = await self._dialer.endpoint(self.pod, port=settings.port, token=self._token)
        async with self._dialer.session.put(
            endpoint.url + ROSTER_ROUTE,
            headers=endpoint.headers,
            json=encode(roster),
            timeout=aiohttp.ClientTimeout(total=settings.push_timeout),
        ) as response:
            if response.status != 200:
                text = await _error_text(response)
                raise LinkError(
                    f"{response.status} {text}", final=response.status in {400, 401, 409}
                )

    def _delay(self, failures: int) -> float:
        settings = self._settings
        delay = min(settings.first_delay * 2.0 ** min(failures, 16), settings.max_delay)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries


def _shape(snapshot: JobSnapshot) -> tuple[Any, ...]:
    """What a reconcile cannot wait for: everything but steps and weight versions."""
    return (
        snapshot.boot,
        snapshot.roster_epoch,
        snapshot.roster_digest,
        tuple((m.pod_uid, m.state, m.reason) for m in snapshot.members),
        snapshot.finished,
        snapshot.groups,
        snapshot.progress.paused,
        snapshot.progress.warning,
        snapshot.progress.max_steps,
    )


async def _error_text(response: aiohttp.ClientResponse) -> str:
    return (await response.content.read(500)).decode(errors="replace")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Non-empty lines; empty ones are heartbeats. Raises LinkError for a line without an end."""
    buffer = b""
    async for chunk in content.iter_any():
        *complete, buffer = (buffer + chunk).split(b"\n")
        for line in complete:
            if line.strip():
                yield line
        if len(buffer) > _LINE_LIMIT:
            raise LinkError("a line of the stream is too long")
