"""One container of a pod: its process, started again when it ends, as the restart policy says."""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rollcall_local.kubelet.container_files import ContainerFiles
from rollcall_local.kubelet.container_launch import Launch
from rollcall_local.kubelet.container_runtime import END_SECONDS
from rollcall_local.kubelet.pod_status import ContainerState
from rollcall_local.kubelet.pod_stop import PodStop
from rollcall_local.kubelet.probes import ContainerProbes
from rollcall_local.kubelet.processes import CannotStartError, ContainerProcess
from rollcall_local.kubelet.restart_delays import RestartDelays
from rollcall_operator.plan.timestamps import to_time

log = logging.getLogger(__name__)

Object = dict[str, Any]

AGAIN_SECONDS = 1.0  # between two attempts to start it


class ContainerRunner:
    """Runs one container until it is over, or until its pod is stopped."""

    def __init__(
        self,
        spec: Object,
        *,
        policy: str,
        grace: float,
        files: ContainerFiles,
        stop: PodStop,
        prepare: Callable[[], Coroutine[Any, Any, Launch]],
        ask: Callable[[Launch, Object], Awaitable[bool]],
        changed: Callable[[], None],
    ) -> None:
        """`policy` is Always, OnFailure or Never; `grace` are the seconds that it has to end when a
        probe fails. `ask` asks a probe; `changed` is called when the state is another.
        """
        self.spec, self._policy, self._grace, self._files = spec, policy, grace, files
        self._stop, self._prepare, self._ask, self._changed = stop, prepare, ask, changed
        self.state = ContainerState(spec["name"], spec.get("image", ""))
        self._process: ContainerProcess | None = None
        self._delays = RestartDelays()
        self._out_of_memory = False
        self._run = 0

    async def run(self) -> None:
        """Until it is over."""
        clock = asyncio.get_running_loop().time
        while (begun := await self._begin()) is not None:
            since = clock()
            code = await self._follow(*begun)
            if self._stop.is_set() or not self._starts_again(code):
                break
            await self._back_off(self._delays.after(clock() - since))
        self.state.is_over = True
        self._changed()

    def kill(self, *, for_memory: bool = False) -> None:
        """End its process at once, perhaps because it uses more memory than its limit."""
        if self._process is not None and not self._process.ended.done():
            self._out_of_memory |= for_memory
            self._process.send(signal.SIGKILL)

    def _starts_again(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    async def _back_off(self, delay: float) -> None:
        if delay:
            message = f"back-off {delay:.0f}s restarting container {self.state.name}"
            self.state.waits("CrashLoopBackOff", message)
            self._changed()
            await self._stop.unless_set(asyncio.sleep(delay))

    async def _begin(self) -> tuple[Launch, ContainerProcess] | None:
        """Start its process once it can be; None if its pod is stopped before."""
        while not self._stop.is_set():
            try:
                launch = await self._stop.unless_set(self._prepare())
                if launch is not None:
                    self._files.message.write_bytes(b"")
                    return launch, await launch.start(self._files.log(self._run))
            except (CannotStartError, OSError) as error:  # a full disk takes no message file
                reason = getattr(error, "reason", CannotStartError.reason)
                self.state.waits(reason, str(error))
                self._changed()
                await self._stop.unless_set(asyncio.sleep(AGAIN_SECONDS))
        return None

    async def _follow(self, launch: Launch, process: ContainerProcess) -> int:
        """One run, until its process has ended; the exit code."""
        began, run = to_time(time.time()), self._run
        self._process, self._out_of_memory, self._run = process, False, run + 1
        self.state.runs(began)
        probes = ContainerProbes(
            self.spec,
            asked=lambda probe: self._ask(launch, probe),
            changed=lambda: self._take(probes),
        )
        self._take(probes)
        if self._stop.is_set():  # while it was being started: it has not done anything yet
            self.kill()
        probing = asyncio.create_task(probes.run())
        stopping = asyncio.create_task(self._stop.wait())
        every: set[asyncio.Future[Any]] = {probing, stopping, process.ended}
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                process.send(signal.SIGTERM)  # its pod kills it in time
            elif probing.done():
                await self._end(process, probing.result())
            await asyncio.wait({process.ended})
        finally:
            self.kill()  # unless it has ended
            probing.cancel()
            stopping.cancel()
            await asyncio.wait(every, timeout=END_SECONDS)
        code = process.ended.result()
        self.state.ended(self._terminated(code, began, run))
        self._changed()
        return code

    async def _end(self, process: ContainerProcess, probe: str) -> None:
        """End it, as a probe has failed."""
        log.warning("Container %s is ended, as its %s failed", process.container, probe)
        process.send(signal.SIGTERM)
        grace = self.spec[probe].get("terminationGracePeriodSeconds", self._grace)
        await asyncio.wait({process.ended}, timeout=grace)
        process.send(signal.SIGKILL)

    def _take(self, probes: ContainerProbes) -> None:
        self.state.started, self.state.ready = probes.started, probes.ready
        self._changed()

    def _terminated(self, code: int, began: str, run: int) -> Object:
        falls_back = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        message = self._files.last_words(run, or_log=code != 0 and falls_back)
        ended = {
            "exitCode": code if code >= 0 else 128 - code,  # as a shell has it
            "reason": "OOMKilled" if self._out_of_memory else "Error" if code else "Completed",
            "startedAt": began,
            "finishedAt": to_time(time.time()),
        }
        return ended | ({"message": message} if message else {})
