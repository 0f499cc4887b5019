"""The commands of users, and of containers: `rollcall-trainer`, `-rollout`, `-reference`, `-front`.

The workers are configured by the environment that the operator writes. torch is imported only after
that is read, so that a wrong configuration fails at once.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rollcall_protocol import __version__, pod_contract
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.train import local_ranks
from rollcall_runtime.train.trainer_plugin import SUPERVISED, trainer_plugins
from rollcall_runtime.worker import environment
from rollcall_runtime.worker.environment import Pod
from rollcall_runtime.worker.errors import FencedError, SpecError
from rollcall_runtime.worker.exit import exit_process, report_failure
from rollcall_runtime.worker.file_limit import raise_file_limit
from rollcall_runtime.worker.logs import configure_logs
from rollcall_runtime.worker.memory_errors import (
    FRONT_MEMORY,
    REFERENCE_MEMORY,
    ROLLOUT_MEMORY,
    TRAINER_MEMORY,
    MemoryAdvice,
)
from rollcall_runtime.worker.parent_process import end_with_parent

log = logging.getLogger(__name__)

LOG_LEVEL = "ROLLCALL_LOG_LEVEL"


def trainer(arguments: Sequence[str] | None = None) -> int:
    """Run one rank of the trainer; rank 0 runs the coordinator too. Returns the exit code.

    In a pod of several ranks it runs itself once for each of them, and ends with them.
    """
    _parse("rollcall-trainer", "The ranks of an RLJob's trainer in one pod.", arguments)

    def run() -> int:
        settings = environment.read_trainer(os.environ)
        if settings.starts_ranks:
            _configure_job_logs(settings.job, settings.pod)
            return local_ranks.run_local_ranks(settings, os.environ)
        ranks = {}
        if settings.job.trainer_processes > 1:
            end_with_parent()
            ranks = {"rank": settings.rank}
        fields = _configure_job_logs(settings.job, settings.pod, **ranks)
        if settings.job.supervised is not None:
            trainer_plugins.get(SUPERVISED)().run(settings)
            return ExitCode.OK
        from rollcall_runtime.train import app  # noqa: PLC0415 - imports torch

        app.run(settings, fields)
        return ExitCode.OK

    return _guarded(run, TRAINER_MEMORY)


def rollout(arguments: Sequence[str] | None = None) -> int:
    """Run a rollout: the agent and its inference engine. Returns the exit code."""
    _parse("rollcall-rollout", "One rollout worker of an RLJob.", arguments)

    def run() -> int:
        settings = environment.read_rollout(os.environ)
        fields = _configure_job_logs(settings.job, settings.pod, pool=settings.pool.pool)
        from rollcall_runtime.rollout import app  # noqa: PLC0415 - imports torch

        app.run(settings, fields)
        return ExitCode.OK

    return _guarded(run, ROLLOUT_MEMORY)


def reference(arguments: Sequence[str] | None = None) -> int:
    """Run a reference pod. Returns the exit code."""
    _parse("rollcall-reference", "The reference of an RLJob, in a pod of its own.", arguments)

    def run() -> int:
        settings = environment.read_reference(os.environ)
        _configure_job_logs(settings.job, settings.pod)
        from rollcall_runtime.train import reference_app  # noqa: PLC0415 - imports torch

        reference_app.run(settings)
        return ExitCode.OK

    return _guarded(run, REFERENCE_MEMORY)


def front(arguments: Sequence[str] | None = None) -> int:
    """Run a pod of the front. Returns the exit code."""
    _parse("rollcall-front", "The rollouts of an RLJob in the form of OpenAI's API.", arguments)

    def run() -> int:
        settings = environment.read_front(os.environ)
        _configure_job_logs(settings.job, settings.pod)
        from rollcall_runtime.front import app  # noqa: PLC0415 - imports torch

        app.run(settings)
        return ExitCode.OK

    return _guarded(run, FRONT_MEMORY)


def trainer_program() -> NoReturn:
    """`rollcall-trainer`."""
    exit_process(trainer())


def rollout_program() -> NoReturn:
    """`rollcall-rollout`."""
    exit_process(rollout())


def reference_program() -> NoReturn:
    """`rollcall-reference`."""
    exit_process(reference())


def front_program() -> NoReturn:
    """`rollcall-front`."""
    exit_process(front())


def sync(arguments: Sequence[str] | None = None) -> int:
    """List the weight-sync engines. Returns the exit code."""
    from rollcall_runtime.sync import cli  # noqa: PLC0415 - the workers do not need it

    return cli.main(arguments)


def train(arguments: Sequence[str] | None = None) -> int:
    """List training engines, show data, export checkpoints, train on answers; the exit code."""
    from rollcall_runtime.train import cli  # noqa: PLC0415 - the workers do not need it

    return cli.main(arguments)


def _parse(name: str, description: str, arguments: Sequence[str] | None) -> None:
    codes = ", ".join(f"{code.value} {code.name}" for code in ExitCode)
    parser = argparse.ArgumentParser(
        name,
        description=(
            f"{description} Configured by the environment alone ({pod_contract.CONFIG}, ...)."
        ),
        epilog=f"Exit codes: {codes}.",
    )
    parser.add_argument("--version", action="version", version=f"rollcall {__version__}")
    parser.parse_args(arguments)


def _guarded(run: Callable[[], int], memory: MemoryAdvice) -> int:
    configure_logs(level=_level())
    raise_file_limit()
    try:
        return run()
    except SpecError as error:
        return report_failure(error, ExitCode.BAD_CONFIG)
    except FencedError as error:
        return report_failure(error, ExitCode.FENCED)
    except SystemExit as error:
        # A library or the user's code called sys.exit, perhaps with 0: the work is not done.
        log.exception("the worker was ended by a call of sys.exit")
        report_failure(error, ExitCode.FAILED)
        own = error.code if isinstance(error.code, int) else 0
        return own or ExitCode.FAILED
    except Exception as error:
        log.exception("the worker failed")
        if (explained := memory.explain(error)) is not None:
            return report_failure(explained, ExitCode.OUT_OF_MEMORY)
        return report_failure(error, ExitCode.FAILED)


def _level() -> int:
    level = logging.getLevelNamesMapping().get(os.environ.get(LOG_LEVEL, "INFO").upper())
    return logging.INFO if level is None else level


def _configure_job_logs(job: JobConfig, pod: Pod, **more: str | int) -> dict[str, Any]:
    """Add the job's coordinates to all log lines; returns the fields, which may be changed."""
    coordinates = {"namespace": job.namespace, "job": job.job, "pod": pod.name, **more}
    logs = configure_logs(level=_level(), **coordinates)
    return logs.fields
