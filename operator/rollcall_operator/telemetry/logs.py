"""Logs as one JSON object a line, with the job and epoch that they are about."""

import contextlib
import contextvars
import datetime as dt
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

_FIELDS: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
    "rollcall_log_fields", default=None
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextlib.contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Add `fields`, less those that are None, to every record logged inside this task."""
    told = {name: value for name, value in fields.items() if value is not None}
    token = _FIELDS.set({**(_FIELDS.get() or {}), **told})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    own = {k: v for k, v in vars(record).items() if k not in _STANDARD and not k.startswith("_")}
    # kopf adds the object and its settings to each record; the object reference is enough.
    own.pop("settings", None)
    own.pop("k8s_skip", None)
    return {**(getattr(record, "_rollcall_fields", None) or {}), **own}


class FieldsFilter(logging.Filter):
    """Catches the context's fields when the record is made, as handlers may run elsewhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        record._rollcall_fields = _FIELDS.get()  # noqa: SLF001 - our own attribute
        return True


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then the record's own and the context's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; values that JSON does not know are written as text."""
        body: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


class TextFormatter(logging.Formatter):
    """The same for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, message, then fields as key=value."""
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{key}={value}" for key, value in _extra(record).items())
        line = f"{time} {record.levelname[0]} {record.getMessage()}"
        line = f"{line}  [{fields}]" if fields else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(*, level: str, style: str) -> None:
    """Send all logs to standard error; `style` is json or text. kopf speaks from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    handler.addFilter(FieldsFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
