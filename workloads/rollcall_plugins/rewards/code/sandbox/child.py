"""The sandboxed process: gives up its rights, then runs a program or calls its function.

It is started with an empty environment and without site-packages, and imports the standard library
alone.
"""

import json
import os
import resource
import signal
import sys
import sysconfig
from typing import Any

from rollcall_plugins.rewards.code.sandbox import landlock, seccomp
from rollcall_runtime.worker.parent_process import end_with_parent

ISOLATED = b"+"  # the first byte of what is written, before any code runs; else it says why not


def main() -> None:
    """Arguments: the descriptors of the request and of the answers.

    The request is JSON: `code`, `function` and `calls` (empty: the code is a program that reads and
    writes), `seconds` of processor time, `memory` in bytes. Each call's result is a line of JSON.
    A program's standard output is the descriptor of the answers.
    """
    asked, answers = (int(number) for number in sys.argv[1:])
    with os.fdopen(asked) as file:
        request = json.load(file)
    try:
        _give_up_rights(seconds=request["seconds"], memory=request["memory"])
    except OSError as error:
        os.write(answers, str(error).encode())
        os._exit(1)
    os.write(answers, ISOLATED)
    sys.argv[:] = ["response.py"]
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(request["code"], "response.py", "exec"), names)  # noqa: S102 - what this is for
    sys.stdout.flush()
    for call in request["calls"]:
        result = json.dumps(names[request["function"]](*call))
        os.write(answers, f"{result}\n".encode())


def _give_up_rights(*, seconds: int, memory: int) -> None:
    end_with_parent()
    for limit, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        resource.setrlimit(limit, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    sys.path[:] = [path for path in sys.path if path.startswith(sys.base_prefix)]
    seccomp.no_new_privileges()
    landlock.restrict(_libraries())
    seccomp.restrict()


def _libraries() -> list[str]:
    """Directories of the standard library and of the shared libraries that it may load."""
    shared = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    found = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), shared}
    return sorted(path for path in found if os.path.isdir(path))  # noqa: PTH112 - few imports
