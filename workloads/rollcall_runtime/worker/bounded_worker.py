"""Calls functions on what others wrote in a process that ends when they take too long.

Some of what a model or a chat template may write cannot be computed at all, such as 9^9^9^9, and
neither a signal nor an exception ends such a computation. `bounded_child` is the process's side.
"""

import json
import os
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection, Pipe
from typing import Any

START_SECONDS = 60.0  # to import the module
_WALL = 3  # so many times its processor time a call may take by the clock
_MOST_BYTES = 1 << 20  # of an answer, unless said otherwise


class OutOfBoundsError(Exception):
    """The call took too much time or memory, or ended its process."""


class BoundedCallError(Exception):
    """The function raised; the text is what."""


class BoundedWorker:
    """Calls the functions of `module` with arguments and results of JSON, one after the other.

    The process may have `memory` bytes, and an answer `most_bytes`. One that exceeds its bounds is
    killed, and the next call has another one. ImportError if the module cannot be imported.
    """

    def __init__(self, module: str, *, memory: int, most_bytes: int = _MOST_BYTES) -> None:
        self._module, self._memory, self._most_bytes = module, memory, most_bytes
        self._start()
        self._wait_until_ready()

    def call(self, function: str, *arguments: Any, seconds: float, within: float) -> Any:
        """What the function returns.

        It may take `seconds` of processor time, and thrice as many by the clock, or `within`.
        OutOfBoundsError, or BoundedCallError for what it raises. RuntimeError if a process that
        takes another's place does not start.
        """
        if not self._ready:
            try:
                self._wait_until_ready()
            except ImportError as error:
                self._restart()
                raise RuntimeError(str(error)) from error
        try:
            asked = {"function": function, "arguments": arguments, "seconds": seconds}
            self._connection.send_bytes(json.dumps(asked).encode())
            answer = self._answer(min(within, _WALL * seconds))
        except (OSError, EOFError, TimeoutError) as error:
            self._restart()
            raise OutOfBoundsError(f"more than {seconds:g} s, or too much memory") from error
        if "raised" in answer:
            raise BoundedCallError(answer["raised"])
        return answer["value"]

    def close(self) -> None:
        """Kill the process. It is also killed once nothing refers to the worker."""
        self._end()

    def _answer(self, seconds: float) -> dict[str, Any]:
        if not self._connection.poll(seconds):
            raise TimeoutError
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes(self._most_bytes))
        return answer

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c"),
                    "from rollcall_runtime.worker.bounded_child import main; main()",
                    *(str(theirs.fileno()), str(os.getpid()), self._module, str(self._memory)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        finally:
            theirs.close()
        self._ready = False
        self._end = weakref.finalize(self, _end, process, self._connection)

    def _restart(self) -> None:
        """The next process imports the module while the rollout does something else."""
        self._end()
        self._start()

    def _wait_until_ready(self) -> None:
        try:
            answer = self._answer(START_SECONDS)
        except (OSError, EOFError, TimeoutError) as error:
            raise ImportError(f"{self._module} did not start within {START_SECONDS:g} s") from error
        if "raised" in answer:
            raise ImportError(answer["raised"])
        self._ready = True


def _end(process: "subprocess.Popen[bytes]", connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()
