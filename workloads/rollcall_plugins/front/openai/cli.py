"""`rollcall-front`: a pod of the front. torch is imported after the environment is read."""

import os
from collections.abc import Sequence
from typing import NoReturn

from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.worker import environment
from rollcall_runtime.worker.exit import exit_process
from rollcall_runtime.worker.memory_errors import FRONT_MEMORY
from rollcall_runtime.worker.program import configure_job_logs, guarded, parse


def front(arguments: Sequence[str] | None = None) -> int:
    """Run a pod of the front. Returns the exit code."""
    parse("rollcall-front", "The rollouts of an RLJob in the form of OpenAI's API.", arguments)

    def run() -> int:
        settings = environment.read_front(os.environ)
        configure_job_logs(settings.job, settings.pod)
        from rollcall_plugins.front.openai import app  # noqa: PLC0415 - imports torch

        app.run(settings)
        return ExitCode.OK

    return guarded(run, FRONT_MEMORY)


def front_program() -> NoReturn:
    """The program `rollcall-front`: ends the process with the exit code of `front`."""
    exit_process(front())
