"""Logs as one JSON object a line on standard error, with the job's coordinates in each line."""

import faulthandler
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.json import JsonFormatter

from rollcall_runtime.worker.log_rate import RepeatedLines

_NAMES = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "exception"}


class JobLogFormatter(JsonFormatter):
    """Writes time (RFC 3339, UTC), level, logger and message, then `fields` and a call's `extra`.

    The operator's logs have the same names. `fields` may change at any time, as the epoch does.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(
            ["asctime", "levelname", "name", "message"], rename_fields=_NAMES, json_default=str
        )
        self.fields = dict(fields)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """The time of `record` in milliseconds."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Add `fields`; those of the call go before them."""
        return {**log_data, "level": log_data["level"].lower()} | {
            name: value for name, value in self.fields.items() if name not in log_data
        }


def configure_logs(*, level: int = logging.INFO, **fields: Any) -> JobLogFormatter:
    """Send all logs to standard error; returns the formatter, whose `fields` may be changed.

    When a native library crashes the process, the Python stacks of all threads go there too, as
    plain lines: a log may be all that is left of a pod.
    """
    formatter = JobLogFormatter(fields)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(RepeatedLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    return formatter
