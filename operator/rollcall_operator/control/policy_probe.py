"""Whether the cluster's network enforces NetworkPolicies, found out by trying.

A job's policies do not let the operator connect to its coordinator's port for completions, which
listens wherever the coordinator does. Tried rarely, beside the reconciles, and only where the
operator connects to pods directly.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from rollcall_protocol.pod_contract import COMPLETIONS_PORT


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Times are seconds. `first`: from the job's policies to the first try, for the network to
    learn of them; `again`: between tries that find no wall, of which two count; `period`: between
    findings, and `timeout` of a try.
    """

    port: int = COMPLETIONS_PORT
    first: float = 5.0
    again: float = 10.0
    period: float = 300.0
    timeout: float = 3.0


class PolicyProbe:
    """Tries one coordinator's pod, as long as `want` says that policies should protect it."""

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
        self._wanted, self._unwanted = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def enforced(self) -> bool | None:
        """What was found; None before it is known, and where nothing is to be found out."""
        return self._enforced

    def start(self) -> None:
        """Begin; call inside a running loop."""
        self._task = asyncio.create_task(self._run(), name=f"policy probe {self._address}")

    def want(self, wanted: bool) -> None:
        """Whether policies should protect the pod now; what was found is forgotten if not."""
        if wanted:
            self._wanted.set()
            self._unwanted.clear()
        else:
            self._wanted.clear()
            self._unwanted.set()
            self._enforced = None

    async def close(self) -> None:
        """End the task and wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._settings.first)
            found = await self._look()
            if found is None or not self._wanted.is_set():
                continue
            if found != self._enforced:
                self._enforced = found
                self._notify(0.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.period):
                    await self._unwanted.wait()

    async def _look(self) -> bool | None:
        """Whether a wall is there; None if it cannot be said now."""
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
