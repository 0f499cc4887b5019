"""The process that `BoundedWorker` starts."""

import importlib
import json
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from rollcall_runtime.worker.parent_process import end_with_parent


def main() -> None:
    """Serve calls until the worker closes its end, or a call exceeds its bounds.

    Arguments: the descriptor of the connection, the parent's process id, the module, bytes of
    memory.
    """
    descriptor, parent, name, memory = sys.argv[1:]
    end_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os._exit(0)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_DATA, int(memory))
    connection = Connection(int(descriptor))
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever importing raises, the parent says it
        _send(connection, raised=f"{type(error).__name__}: {error}")
        return
    _send(connection)
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
        except EOFError:
            return
        _bound_time(asked["seconds"])
        try:
            value = getattr(module, asked["function"])(*asked["arguments"])
        except (MemoryError, RecursionError):
            os._exit(1)
        except Exception as error:  # noqa: BLE001 - the parent decides what it means
            _send(connection, raised=f"{type(error).__name__}: {error}"[:1000])
        else:
            _send(connection, value=value)


def _send(connection: Connection, **message: Any) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _bound_time(seconds: float) -> None:
    """From now on; the kernel ends the process after that much more processor time."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    _lower(resource.RLIMIT_CPU, int(used + seconds) + 1)


def _lower(limit: int, value: int) -> None:
    """The soft limit, to at most what the hard one is."""
    hard = resource.getrlimit(limit)[1]
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (soft, hard))
