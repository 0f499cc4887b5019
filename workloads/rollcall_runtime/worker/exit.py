"""How a worker ends: it says why where people look, and exits with a code that means it."""

import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from rollcall_protocol import env

log = logging.getLogger(__name__)

MESSAGE_BYTES = 4000  # what a kubelet keeps of a termination message


def give_up(message: str, code: env.ExitCode) -> int:
    """Say why, where `kubectl logs` and the job's conditions find it; returns `code`."""
    sys.stderr.write(f"{message}\n")
    path = Path(env.TERMINATION_LOG)
    if path.exists():
        try:
            path.write_text(message[:MESSAGE_BYTES], encoding="utf-8")
        except OSError as error:
            log.warning("cannot write %s: %s", path, error)
    return code


def abandon(message: str) -> NoReturn:
    """End this process at once: a thread is in a call that nothing can interrupt."""
    log.error("%s; giving up, to be started again", message)
    leave(give_up(message, env.ExitCode.FAILED))


def leave(code: int) -> NoReturn:
    """End this process without taking the interpreter down first.

    Until Python 3.14 that ends every thread that wants the GIL by unwinding it, which aborts the
    process if torch's own threads are among them: gloo's let go of tensors a moment after the last
    collective, and all was well but for the exit code. See python/cpython#87135.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
