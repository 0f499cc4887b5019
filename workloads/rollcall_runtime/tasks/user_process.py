"""A supervised process that runs the user's code for this worker.

What the code does to its process (exit, fork, hang, use up memory) leaves the worker and its
weights alone. `rollcall_runtime.tasks.user_child` is the process's side. Messages are JSON behind
their length: no pickle, as what the user's code makes is trusted with nothing.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rollcall_protocol.wire.reward_errors import printable
from rollcall_runtime.tasks.process_messages import LENGTH, pack
from rollcall_runtime.worker.errors import SpecError

START_SECONDS = 120.0  # to import the user's module, and what that imports
ANSWER_SECONDS = 0.2  # for the last answer of a process that has exited
LEAST_MEMORY = 256 << 20  # bytes


class ProcessDiedError(RuntimeError):
    """The process ended, or answered what it should not."""


@dataclass(frozen=True, slots=True)
class UserCode:
    """What a process runs: `main` of the module `child`, which gets `named` (JSON) as argument.

    `shown` is its name in errors, `field` the path of it in the RLJob. An answer has at most
    `max_answer` bytes.
    """

    child: str
    named: str
    shown: str
    field: str
    max_answer: int


@dataclass(frozen=True, slots=True)
class UserProcess:
    """A process that has loaded the user's code, whose definition is at `file` and `line`.

    Both are empty and 0 if that is not known. `exited` is done once it has ended. It may allocate
    `memory` bytes, 0 for any.
    """

    code: UserCode
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Task[int]
    memory: int
    file: str = ""
    line: int = 0

    @classmethod
    async def start(cls, code: UserCode, *, free: int | None) -> "UserProcess":
        """Start a process, which may allocate half of `free` bytes; SpecError if it cannot load."""
        memory = 0 if free is None else max(LEAST_MEMORY, free // 2)
        spawned = await _spawn(code, memory)
        try:
            async with asyncio.timeout(START_SECONDS):
                definition = await spawned.answer()
        except TimeoutError as error:
            await spawned.kill()
            problem = f"{code.shown!r} was not imported within {START_SECONDS:g} s"
            raise SpecError(code.field, problem) from error
        except BaseException as error:
            await spawned.kill()
            if isinstance(error, ProcessDiedError):
                problem = f"importing {code.shown!r} ended its process: {error}"
                raise SpecError(code.field, problem) from error
            raise
        if "refused" in definition:
            await spawned.kill()
            field = str(definition.get("field", code.field))
            raise SpecError(field, str(definition["refused"]))
        file, line = printable(str(definition.get("file", ""))), int(definition.get("line", 0))
        return replace(spawned, file=file, line=line)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message for the process, without waiting until it is read."""
        self.writer.write(pack(message))

    async def answer(self) -> dict[str, Any]:
        """The next message of the process. ProcessDiedError if it ends instead."""
        reading, exited = asyncio.ensure_future(self._read()), self.exited
        try:
            await asyncio.wait({reading, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():  # something that it started may hold the socket open
                await asyncio.wait({reading}, timeout=ANSWER_SECONDS)
            if reading.done() and reading.exception() is None:
                return reading.result()
            await asyncio.wait({exited}, timeout=ANSWER_SECONDS)
        finally:
            reading.cancel()
        if exited.done():
            raise ProcessDiedError(_exit_text(exited.result(), self.memory))
        raise ProcessDiedError(f"it sent no answer: {reading.exception()}")

    async def kill(self) -> None:
        """End the process and what it started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.writer.close()
        await self.exited

    async def _read(self) -> dict[str, Any]:
        (length,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
        if length > self.code.max_answer:
            raise ValueError(f"a message of {length} bytes")
        message = json.loads(await self.reader.readexactly(length))
        if not isinstance(message, dict):
            raise TypeError(f"a message that is a {type(message).__name__}")
        return message


async def _spawn(code: UserCode, memory: int) -> UserProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"import {code.child} as m; m.main()",
            *(str(theirs.fileno()), str(os.getpid()), str(memory), code.named),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that it is killed with the processes that it started
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    exited = asyncio.create_task(process.wait())
    return UserProcess(code, process, reader, writer, exited, memory)


def _exit_text(code: int, memory: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        limit = f" (its own limit: {memory >> 20} MiB)" if memory else ""
        return (
            f"signal SIGKILL, as the kernel sends it when the container has no memory left{limit}; "
            "raise resources.limits.memory of the rollouts, or have it use less"
        )
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"signal {name}"
