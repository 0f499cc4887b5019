"""Run code in a process that `child` isolates, and take what it writes within bounds."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rollcall_plugins.rewards.code.sandbox import child

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_OUTPUT = 1 << 20  # bytes
_START_SECONDS = 20.0  # of an interpreter on a busy machine
_SHARE = 2  # so many times its processor time the code may take by the clock
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import main; main()"
_FOUND_BENEATH = str(Path(child.__file__).parents[4])  # where rollcall_plugins is


class SandboxError(OSError):
    """Code cannot be isolated on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`seconds` of processor time, and twice as many by the clock; `memory` in bytes.

    `within` so many seconds by the clock the run ends, whatever it has done.
    """

    seconds: int
    memory: int
    within: float = math.inf


@dataclass(frozen=True, slots=True)
class CodeRun:
    """What code wrote, and how it ended: `ended_well` is False after an exception or a limit."""

    output: bytes
    ended_well: bool


def run_program(code: str, given: str, limits: Limits) -> CodeRun:
    """Run `code` with `given` as standard input; its standard output. SandboxError."""
    return _run({"code": code, "function": "", "calls": []}, given, limits)


def call_function(
    code: str, function: str, calls: Sequence[Sequence[Any]], limits: Limits
) -> list[Any]:
    """Results of the calls, until the first that failed, exceeded a limit or is no JSON.

    SandboxError.
    """
    run = _run({"code": code, "function": function, "calls": list(calls)}, "", limits)
    results: list[Any] = []
    for line in run.output.split(b"\n")[:-1]:
        try:
            results.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return results[: len(calls)]


def _run(request: dict[str, Any], given: str, limits: Limits) -> CodeRun:
    limited = {"seconds": limits.seconds, "memory": limits.memory}
    with ExitStack() as undo:
        asked = undo.enter_context(_file_of(json.dumps(request | limited)))
        stdin = undo.enter_context(_file_of(given))
        said, says = os.pipe()
        undo.callback(os.close, said)
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-B", "-c", _START.format(module=child.__name__)),
                    *(_FOUND_BENEATH, str(asked.fileno()), str(says)),
                ],
                stdin=stdin,
                stdout=subprocess.DEVNULL if request["calls"] else says,
                stderr=subprocess.DEVNULL,
                pass_fds=(asked.fileno(), says),
                env={},
            )
        finally:
            os.close(says)
        end = time.monotonic() + limits.within
        try:
            output = _read(said, within=min(_START_SECONDS, limits.within), most=1)
            deadline = min(end, time.monotonic() + _SHARE * limits.seconds)
            output += _read(said, within=deadline - time.monotonic(), most=LONGEST_OUTPUT)
            code = _exit_code(process, 0.0 if len(output) > LONGEST_OUTPUT else deadline)
        finally:
            process.kill()
            process.wait()
    if not output and limits.within < _START_SECONDS:  # earlier runs took the rest of the time
        return CodeRun(b"", ended_well=False)
    if not output.startswith(child.ISOLATED):
        raise SandboxError(output.decode(errors="replace") or f"no start (exit code {code})")
    return CodeRun(output.removeprefix(child.ISOLATED), ended_well=code == 0)


def _file_of(text: str) -> IO[bytes]:
    """An open file without a name that holds `text`."""
    file = os.fdopen(os.memfd_create("rollcall-code"), "w+b")
    file.write(text.encode())
    file.flush()
    file.seek(0)
    return file


def _read(descriptor: int, *, within: float, most: int) -> bytes:
    """What is written in `within` seconds, until all writers closed; `most` bytes or some more."""
    deadline = time.monotonic() + within
    found = bytearray()
    while len(found) < most:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            break
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        found += part
    return bytes(found)


def _exit_code(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """None if it does not end before the deadline."""
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
