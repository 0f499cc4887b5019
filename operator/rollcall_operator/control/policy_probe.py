"""Whether the cluster's network enforces NetworkPolicies, found out by trying.

A job's policies do not let the operator connect to its coordinator's port for completions, which
listens wherever the coordinator does. Tried rarely, beside the reconciles, and only where the
operator connects to pods directly.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from rollcall_protocol.pod_contract import COMPLETIONS_PORT


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Times are seconds. `first`: from the job's policies to the first try, for the network to
    learn of them; `again`: between tries that are let in, of which two count; `period`: between
    findings, and `timeout` of a try.
    """

    port: int = COMPLETIONS_PORT
    first: float = 5.0
    again: float = 10.0
    period: float = 300.0
    timeout: float = 3.0


class PolicyProbe:
    """Tries one coordinator's pod, as long as `want` says that policies should protect it.

    Between two tries there is only a timer: thousands of jobs have a probe each.
    """

    def __init__(
        self,
        *,
        address: str,
        connected: Callable[[], bool],
        notify: Callable[[float], None],
        settings: ProbeSettings | None = None,
    ) -> None:
        """`address` is the pod's. `connected` says whether the operator's own port is reached now:
        else a try that fails means nothing. `notify(delay)` asks for a reconcile of the job.
        """
        self._address, self._connected, self._notify = address, connected, notify
        self._settings = settings or ProbeSettings()
        self._enforced: bool | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def enforced(self) -> bool | None:
        """What was found; None before it is known, and where nothing is to be found out."""
        return self._enforced

    def want(self, wanted: bool) -> None:
        """Whether policies should protect the pod now. If not, or while the operator does not reach
        it anyway, nothing is tried and what was found is forgotten. Call inside a running loop.
        """
        if not (wanted and self._connected()):
            self._stop()
            self._enforced = None
        elif self._timer is None:
            self._wait(self._settings.first)

    async def close(self) -> None:
        """End a try that is going on, and wait for its end."""
        task = self._task
        self._stop()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._timer = self._task = None

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._try(), name=f"policy probe {self._address}")

    async def _try(self) -> None:
        found = await self._look()
        self._task = None
        self._wait(self._settings.first if found is None else self._settings.period)
        if found is not None and found != self._enforced:
            self._enforced = found
            self._notify(0.0)

    async def _look(self) -> bool | None:
        """Whether the policy keeps the operator out; None if it cannot be said now."""
        if await self._connects():
            await asyncio.sleep(self._settings.again)
            return not await self._connects()
        return True if self._connected() else None

    async def _connects(self) -> bool:
        try:
            async with asyncio.timeout(self._settings.timeout):
                _, writer = await asyncio.open_connection(self._address, self._settings.port)
        except OSError:  # TimeoutError is one
            return False
        writer.transport.abort()
        return True
