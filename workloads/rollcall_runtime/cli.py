"""The commands of users, and of containers: `rollcall-trainer`, `-rollout`, `-reference`.

The workers are configured by the environment that the operator writes. torch is imported only after
that is read, so that a wrong configuration fails at once.
"""

import os
from collections.abc import Sequence
from typing import NoReturn

from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.train import local_ranks
from rollcall_runtime.train.trainer_plugin import SUPERVISED, trainer_plugins
from rollcall_runtime.worker import environment
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.exit import exit_process
from rollcall_runtime.worker.memory_errors import (
    REFERENCE_MEMORY,
    ROLLOUT_MEMORY,
    TRAINER_MEMORY,
)
from rollcall_runtime.worker.parent_process import end_with_parent
from rollcall_runtime.worker.program import configure_job_logs, guarded, parse

_NOT_OURS = (
    "is External, and the container's command is rollcall-trainer, which is the builtin trainer; "
    "give your own program's command"
)


def trainer(arguments: Sequence[str] | None = None) -> int:
    """Run one rank of the trainer; rank 0 runs the coordinator too. Returns the exit code.

    In a pod of several ranks it runs itself once for each of them, and ends with them.
    """
    parse("rollcall-trainer", "The ranks of an RLJob's trainer in one pod.", arguments)

    def run() -> int:
        settings = environment.read_trainer(os.environ)
        if settings.job.external:
            raise SpecError("spec.trainer.kind", _NOT_OURS)
        if settings.starts_ranks:
            configure_job_logs(settings.job, settings.pod)
            return local_ranks.run_local_ranks(settings, os.environ)
        ranks = {}
        if settings.job.trainer_processes > 1:
            end_with_parent()
            ranks = {"rank": settings.rank}
        fields = configure_job_logs(settings.job, settings.pod, **ranks)
        if settings.job.supervised is not None:
            trainer_plugins.get(SUPERVISED)().run(settings)
            return ExitCode.OK
        from rollcall_runtime.train import app  # noqa: PLC0415 - imports torch

        app.run(settings, fields)
        return ExitCode.OK

    return guarded(run, TRAINER_MEMORY)


def rollout(arguments: Sequence[str] | None = None) -> int:
    """Run a rollout: the agent and its inference engine. Returns the exit code."""
    parse("rollcall-rollout", "One rollout worker of an RLJob.", arguments)

    def run() -> int:
        settings = environment.read_rollout(os.environ)
        fields = configure_job_logs(settings.job, settings.pod, pool=settings.pool.pool)
        from rollcall_runtime.rollout import app  # noqa: PLC0415 - imports torch

        app.run(settings, fields)
        return ExitCode.OK

    return guarded(run, ROLLOUT_MEMORY)


def reference(arguments: Sequence[str] | None = None) -> int:
    """Run a reference pod. Returns the exit code."""
    parse("rollcall-reference", "The reference of an RLJob, in a pod of its own.", arguments)

    def run() -> int:
        settings = environment.read_reference(os.environ)
        configure_job_logs(settings.job, settings.pod)
        from rollcall_runtime.train import reference_app  # noqa: PLC0415 - imports torch

        reference_app.run(settings)
        return ExitCode.OK

    return guarded(run, REFERENCE_MEMORY)


def trainer_program() -> NoReturn:
    """The program `rollcall-trainer`: ends the process with the exit code of `trainer`."""
    exit_process(trainer())


def rollout_program() -> NoReturn:
    """The program `rollcall-rollout`: ends the process with the exit code of `rollout`."""
    exit_process(rollout())


def reference_program() -> NoReturn:
    """The program `rollcall-reference`: ends the process with the exit code of `reference`."""
    exit_process(reference())


def sync(arguments: Sequence[str] | None = None) -> int:
    """List the weight-sync engines. Returns the exit code."""
    from rollcall_runtime.sync import cli  # noqa: PLC0415 - the workers do not need it

    return cli.main(arguments)


def train(arguments: Sequence[str] | None = None) -> int:
    """List training engines, show data, export checkpoints, train on answers; the exit code."""
    from rollcall_runtime.train import cli  # noqa: PLC0415 - the workers do not need it

    return cli.main(arguments)
