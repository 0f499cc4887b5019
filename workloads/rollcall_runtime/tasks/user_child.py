"""The side of a process that runs the user's code beside a worker.

It imports neither torch nor anything else that the user's own module does not import. It ends with
the worker, however that ends.
"""

import contextlib
import json
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rollcall_runtime.tasks.process_messages import pack
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.exit import summary
from rollcall_runtime.worker.parent_process import end_with_parent

_KILLED_FIRST = 1000  # of the processes of a container that has no memory left; proc(5)


class Loaded(Protocol):
    """The user's code; `file` and `line` are where it is defined."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


T = TypeVar("T", bound=Loaded)


def run_child(
    load: Callable[[dict[str, Any]], T], serve: Callable[[socket.socket, T], None]
) -> None:
    """Load the user's code, and serve until the worker closes its side of the socket.

    Arguments of the process: the socket's descriptor, the worker's process id, how much memory the
    process may allocate in bytes (0: any), and what `load` gets, as JSON. `load` may raise
    SpecError.
    """
    connection, parent, memory, named = sys.argv[1:]
    end_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os._exit(0)
    _limit_memory(int(memory))
    with socket.socket(fileno=int(connection)) as worker:
        try:
            loaded = load(json.loads(named))
        except SpecError as error:
            traceback.print_exception(error)
            problem = summary(error).removeprefix(f"{error.field}: ")
            worker.sendall(pack({"refused": problem, "field": error.field}))
            os._exit(1)
        worker.sendall(pack({"file": loaded.file, "line": loaded.line}))
        with contextlib.suppress(ConnectionError):  # the worker ended and left an answer unread
            serve(worker, loaded)
    os._exit(0)  # threads of the user's code do not hold it back


def _limit_memory(nbytes: int) -> None:
    if nbytes > 0:
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    with contextlib.suppress(OSError):  # a kernel without it
        Path("/proc/self/oom_score_adj").write_text(str(_KILLED_FIRST), encoding="ascii")
