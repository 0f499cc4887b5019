"""`python -m rollcall_runtime.external LINK FILE [RANK RANKS LOCAL_RANK LOCAL_RANKS]`, which the
library `rollcall` starts.
"""

import os
import sys

from rollcall_runtime.worker import environment
from rollcall_runtime.worker.exit import exit_process
from rollcall_runtime.worker.memory_errors import TRAINER_MEMORY
from rollcall_runtime.worker.program import configure_job_logs, guarded


def _run() -> int:
    link, file, *place = map(int, sys.argv[1:])
    settings = environment.read_trainer(os.environ)
    fields = configure_job_logs(settings.job, settings.pod)
    from rollcall_runtime.external import app  # noqa: PLC0415 - imports torch
    from rollcall_runtime.external.sending_rank import RankPlace  # noqa: PLC0415

    app.run(settings, fields, link=link, file=file, place=RankPlace(*place) if place else None)
    return 0


if __name__ == "__main__":
    exit_process(guarded(_run, TRAINER_MEMORY))
