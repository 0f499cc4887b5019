"""Logs: one JSON object a line, with the job and epoch they are about."""

import asyncio
import datetime as dt
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_operator.telemetry.logs import (
    ContextFields,
    OperatorJsonFormatter,
    TextFormatter,
    log_fields,
)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(stream: io.StringIO) -> Iterator[logging.Logger]:
    logger = logging.getLogger("test-of-logs")
    handler = logging.StreamHandler(stream)
    handler.addFilter(ContextFields())
    handler.setFormatter(OperatorJsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_level_message_and_fields(log: logging.Logger, stream: io.StringIO) -> None:
    with log_fields(namespace="ns", job="reverse"), log_fields(epoch=3):
        log.info("Roster %s", "pushed", extra={"pod": "p-0"})
    log.info("outside")
    first, second = lines(stream)
    assert first["message"] == "Roster pushed"
    assert (first["level"], first["logger"]) == ("info", "test-of-logs")
    assert dt.datetime.fromisoformat(first["time"]).utcoffset() == dt.timedelta(0)
    assert "T" in first["time"]
    assert (first["namespace"], first["job"], first["epoch"]) == ("ns", "reverse", 3)
    assert first["pod"] == "p-0"
    assert "job" not in second


def test_an_exception_is_one_line(log: logging.Logger, stream: io.StringIO) -> None:
    try:
        int("bad")
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert "ValueError: invalid literal" in line["exception"]


def test_what_json_does_not_know_is_text(log: logging.Logger, stream: io.StringIO) -> None:
    log.info("x", extra={"thing": {1, 2}.__class__})
    assert "set" in lines(stream)[0]["thing"]


async def test_tasks_keep_their_own_fields(log: logging.Logger, stream: io.StringIO) -> None:
    async def work(job: str) -> None:
        with log_fields(job=job):
            await asyncio.sleep(0)
            log.info(job)

    await asyncio.gather(*(work(f"job-{n}") for n in range(5)))
    assert all(line["message"] == line["job"] for line in lines(stream))


def test_text_for_a_terminal() -> None:
    record = logging.makeLogRecord({"msg": "Applied %s", "args": ("x",), "levelname": "INFO"})
    with log_fields(job="reverse"):
        ContextFields().filter(record)
    assert TextFormatter().format(record).endswith("I Applied x  [job=reverse]")


HOSTILE = "a\nI Applied all\r\u2028\u202e\x1b[2J\x9b\ud800"


def hostile_record() -> logging.LogRecord:
    record = logging.makeLogRecord({"msg": "refused %s", "args": (HOSTILE,), "levelname": "INFO"})
    record.pod = HOSTILE
    return record


def test_no_text_of_others_makes_a_line_of_its_own() -> None:
    line = OperatorJsonFormatter().format(hostile_record())
    assert line.isascii()
    assert line.isprintable()
    read = json.loads(line)
    assert (read["message"], read["pod"]) == (f"refused {HOSTILE}", HOSTILE)


def test_no_text_of_others_steers_a_terminal() -> None:
    record = hostile_record()
    line = TextFormatter().format(record)
    assert line.isprintable()
    record.exc_info = (ValueError, ValueError(HOSTILE), None)
    _, *traceback = TextFormatter().format(record).split("\n")
    assert all(map(str.isprintable, traceback))
