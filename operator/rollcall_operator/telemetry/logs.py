"""Logs as one JSON object a line, with the job and epoch that they are about.

Fields, the same in the operator and in the workers: `time` (RFC 3339, UTC), `level` (lower case),
`logger`, `message`; then the context where it is known: `namespace`, `job`, `epoch`, `pod`, and
others that a call adds; `exception` is a traceback as text.
"""

import contextlib
import contextvars
import datetime as dt
import logging
import sys
from collections.abc import Iterator
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from rollcall_protocol.wire.printable_text import one_line, printable_lines

_FIELDS: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
    "rollcall_log_fields", default=None
)
# kopf adds its settings and the object to each record; the object's reference is enough.
_LEFT_OUT = frozenset({*RESERVED_ATTRS, "message", "asctime", "taskName", "settings", "k8s_skip"})


@contextlib.contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Add `fields`, except those that are None, to every record logged inside this task."""
    known = {name: value for name, value in fields.items() if value is not None}
    token = _FIELDS.set({**(_FIELDS.get() or {}), **known})
    try:
        yield
    finally:
        _FIELDS.reset(token)


class ContextFields(logging.Filter):
    """Copies the context's fields when a record is made, as handlers may run elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to the record; True, as every record is kept."""
        for name, value in (_FIELDS.get() or {}).items():
            record.__dict__.setdefault(name, value)
        return True


class OperatorJsonFormatter(JsonFormatter):
    """One line of JSON; values that JSON does not know are written as text."""

    def __init__(self) -> None:
        super().__init__(
            "{levelname}{name}{message}",
            style="{",
            timestamp="time",
            rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
            reserved_attrs=list(_LEFT_OUT),
            json_default=_as_text,
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Levels in lower case, the time first."""
        log_data["level"] = str(log_data["level"]).lower()
        return {"time": log_data.pop("time"), **log_data}


def _as_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="milliseconds")
    return str(value)


class TextFormatter(logging.Formatter):
    """The same for a person at a terminal, whom no text of others deceives: one line a record, and
    the traceback behind it, without what a terminal obeys.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, then fields as key=value."""
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).strftime("%H:%M:%S.%f")[:-3]
        own = {k: v for k, v in vars(record).items() if k not in _LEFT_OUT}
        fields = " ".join(f"{key}={value}" for key, value in own.items())
        line = f"{time} {record.levelname[0]} {record.getMessage()}"
        line = one_line(f"{line}  [{fields}]" if fields else line)
        if not record.exc_info:
            return line
        return f"{line}\n{printable_lines(self.formatException(record.exc_info))}"


def configure(*, level: str, style: str) -> None:
    """Send all logs to standard error; `style` is json or text. kopf logs from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OperatorJsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(ContextFields())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
