"""`python -m rollcall_runtime.external.rollout LINK TAKES`, which the library `rollcall` starts.

LINK is the descriptor of the socket to the program. TAKES says how that takes weights: `itself`, or
by a `function` that is called with them.
"""

import os
import sys

from rollcall_runtime.worker import environment
from rollcall_runtime.worker.exit import exit_process
from rollcall_runtime.worker.memory_errors import ROLLOUT_MEMORY
from rollcall_runtime.worker.program import configure_job_logs, guarded


def _run() -> int:
    link, takes = sys.argv[1:]
    settings = environment.read_rollout(os.environ)
    fields = configure_job_logs(settings.job, settings.pod, pool=settings.pool.pool)
    from rollcall_runtime.external.rollout import app  # noqa: PLC0415 - imports torch

    app.run(settings, fields, link=int(link), by_function=takes == "function")
    return 0


if __name__ == "__main__":
    exit_process(guarded(_run, ROLLOUT_MEMORY))
