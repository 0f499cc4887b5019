"""An inference server as a process: started, watched, killed with all its children."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rollcall_runtime.rollout.engines.server import guard
from rollcall_runtime.rollout.engines.server.client import InferenceServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rollcall_runtime.rollout.engines.server.client import ServerClient

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks at whether it runs and answers
END_SECONDS = 5.0  # for it to end by itself once it is asked to


class ServerProcess:
    """The server `name` that `command` starts and the client of `connect` calls.

    `folder` has its temporary files, and is removed when the agent ends, however that ends.
    `alive`: a route on which the process that generates answers. `silent_seconds`: the server is
    killed if it does not answer for so long. `failure` says why it does not serve any more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        connect: Callable[[], ServerClient],
        alive: str,
        variables: Mapping[str, str],
        silent_seconds: float,
    ) -> None:
        self.command, self.failure = list(command), ""
        self._name, self._connect, self._alive = name, connect, alive
        self._folder, self._silent = folder, silent_seconds
        self._variables = {**variables, "TMPDIR": str(folder)}  # servers leave sockets there
        self._process: asyncio.subprocess.Process | None = None
        self._guard: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._client: ServerClient | None = None
        self._shared: set[Path] = set()

    @property
    def client(self) -> ServerClient:
        """For calls to the server. RuntimeError before `start`."""
        if self._client is None:
            raise RuntimeError(f"{self._name} is not started")
        return self._client

    async def start(self, *, seconds: float) -> None:
        """Start it and wait until it answers; RuntimeError if it does not within `seconds`."""
        self._client = self._connect()
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            env={**os.environ, **self._variables},
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-E", guard.__file__),
            *(str(self._process.pid), str(self._folder)),
            env={**os.environ, guard.GUARD: "1"},
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        began = time.monotonic()
        while not await self._answers():
            if (code := self._process.returncode) is not None:
                raise RuntimeError(
                    f"{self._name} ended with {_ending(code)}; its own output says why"
                )
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"{self._name} did not answer within {seconds:g} s")
            await asyncio.sleep(0.2)
        log.info("%s serves after %.1f s", self._name, time.monotonic() - began)
        self._shared = guard.shared_memory(self._process.pid)  # of processes that may be killed
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End it and its children, and remove the shared memory that they leave."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._process is not None:
            await self._end()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            await self._guard.wait()
        if self._client is not None:
            await self._client.close()

    def fail(self, why: str) -> None:
        """Take it out of service, for the first reason given."""
        if not self.failure:
            self.failure = why
            log.error("%s", why)

    async def _answers(self) -> bool:
        with suppress(InferenceServerError, OSError, TimeoutError):
            await self.client.get(self._alive, seconds=max(self._silent, 1.0))
            return True
        return False

    async def _watch(self) -> None:
        assert self._process is not None  # noqa: S101 - `start` made it
        while not self.failure:
            await asyncio.sleep(LOOK_SECONDS)
            looking = asyncio.create_task(self._answers())
            ending = asyncio.create_task(self._process.wait())
            await asyncio.wait([looking, ending], return_when=asyncio.FIRST_COMPLETED)
            if looking.done() and not looking.result():
                # A connection breaks before it shows that the process has ended.
                await asyncio.wait([ending], timeout=LOOK_SECONDS)
            looking.cancel()
            ending.cancel()
            if self._process.returncode is not None:
                self.fail(f"{self._name} ended with {_ending(self._process.returncode)}")
            elif not looking.result():
                self.fail(f"{self._name} gave no answer for {self._silent:g} s; it is killed")
        await self._end()  # what it paused would wait for ever

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        killing = asyncio.to_thread(guard.kill, process.pid, self._shared)
        await asyncio.gather(killing, process.wait())


def _ending(code: int) -> str:
    return f"code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
