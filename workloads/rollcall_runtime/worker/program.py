"""What the programs of all workers share: arguments, logs, and an exit code for each error."""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from rollcall_protocol import __version__, pod_contract
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.worker.environment import Pod
from rollcall_runtime.worker.errors import FencedError, SpecError
from rollcall_runtime.worker.exit import report_failure
from rollcall_runtime.worker.file_limit import raise_file_limit
from rollcall_runtime.worker.logs import configure_logs
from rollcall_runtime.worker.memory_errors import MemoryAdvice

log = logging.getLogger(__name__)

LOG_LEVEL = "ROLLCALL_LOG_LEVEL"


def parse(name: str, description: str, arguments: Sequence[str] | None) -> None:
    """Answer --help and --version, and refuse other arguments: SystemExit."""
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


def guarded(run: Callable[[], int], memory: MemoryAdvice) -> int:
    """Run a worker; what it raises becomes an exit code and the pod's last message."""
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


def configure_job_logs(job: JobConfig, pod: Pod, **more: str | int) -> dict[str, Any]:
    """Add the job's coordinates to all log lines; returns the fields, which may be changed."""
    coordinates = {"namespace": job.namespace, "job": job.job, "pod": pod.name, **more}
    logs = configure_logs(level=_level(), **coordinates)
    return logs.fields
