"""`rollcall-trainer` and `rollcall-rollout`: what the containers run; `rollcall-sync` beside them.

Everything comes from the environment that the operator writes; torch is imported only after that
was read, so that a wrong configuration is told at once.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rollcall_protocol import __version__, env
from rollcall_protocol.job_config import JobConfig
from rollcall_runtime.worker import environment
from rollcall_runtime.worker.environment import Pod
from rollcall_runtime.worker.errors import FencedError, SpecError
from rollcall_runtime.worker.exit import give_up, leave
from rollcall_runtime.worker.telemetry import configure_logs

log = logging.getLogger(__name__)

LOG_LEVEL = "ROLLCALL_LOG_LEVEL"


def trainer(arguments: Sequence[str] | None = None) -> int:
    """The trainer: one rank of it, rank 0 with the coordinator."""
    _parse("rollcall-trainer", "One rank of an RLJob's trainer.", arguments)

    def run() -> None:
        told = environment.read_trainer(os.environ)
        fields = _log_as(told.job, told.pod)
        from rollcall_runtime.train import app  # noqa: PLC0415 - imports torch

        app.run(told, fields)

    return _guarded(run)


def rollout(arguments: Sequence[str] | None = None) -> int:
    """A rollout: the agent and its inference engine."""
    _parse("rollcall-rollout", "One rollout worker of an RLJob.", arguments)

    def run() -> None:
        told = environment.read_rollout(os.environ)
        _log_as(told.job, told.pod)
        from rollcall_runtime.rollout import app  # noqa: PLC0415 - imports torch

        app.run(told)

    return _guarded(run)


def trainer_program() -> NoReturn:
    """`rollcall-trainer`."""
    leave(trainer())


def rollout_program() -> NoReturn:
    """`rollcall-rollout`."""
    leave(rollout())


def sync(arguments: Sequence[str] | None = None) -> int:
    """Weight-sync engines: what there is, and how fast it is here."""
    from rollcall_runtime.bench import cli  # noqa: PLC0415 - the workers do not need it

    return cli.main(arguments)


def _parse(name: str, description: str, arguments: Sequence[str] | None) -> None:
    codes = ", ".join(f"{code.value} {code.name}" for code in env.ExitCode)
    parser = argparse.ArgumentParser(
        name,
        description=f"{description} Configured by the environment alone ({env.CONFIG}, ...).",
        epilog=f"Exit codes: {codes}.",
    )
    parser.add_argument("--version", action="version", version=f"rollcall {__version__}")
    parser.parse_args(arguments)


def _guarded(run: Callable[[], None]) -> int:
    configure_logs(level=_level())
    try:
        run()
    except SpecError as error:
        return give_up(str(error), env.ExitCode.BAD_CONFIG)
    except FencedError as error:
        return give_up(str(error), env.ExitCode.FENCED)
    except Exception as error:
        log.exception("the worker failed")
        return give_up(f"{type(error).__name__}: {error}", env.ExitCode.FAILED)
    return env.ExitCode.OK


def _level() -> int:
    level = logging.getLevelNamesMapping().get(os.environ.get(LOG_LEVEL, "INFO").upper())
    return logging.INFO if level is None else level


def _log_as(job: JobConfig, pod: Pod) -> dict[str, Any]:
    """Logs with the job's coordinates; returns their fields, to which the epoch is added."""
    logs = configure_logs(level=_level(), namespace=job.namespace, job=job.job, pod=pod.name)
    return logs.fields
