"""Each log line is one JSON object with the job's fields, by the names that the operator uses."""

import json
import logging
import signal
import subprocess
import sys

from rollcall_runtime.worker.logs import JobLogFormatter


def record(level: int = logging.WARNING, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("rollcall_runtime.x", level, "f", 1, "took %d s", (5,), None)
    made.created = 1_700_000_000.1234
    made.__dict__.update(extra)
    return made


def test_a_line_has_the_jobs_fields_and_those_of_the_call() -> None:
    formatter = JobLogFormatter({"job": "reverse", "pod": "reverse-cpu-0"})
    formatter.fields["epoch"] = 3
    assert json.loads(formatter.format(record(step=7))) == {
        "time": "2023-11-14T22:13:20.123+00:00",
        "level": "warning",
        "logger": "rollcall_runtime.x",
        "message": "took 5 s",
        "job": "reverse",
        "pod": "reverse-cpu-0",
        "epoch": 3,
        "step": 7,
    }


def test_an_exception_is_in_the_same_line() -> None:
    made = record()
    try:
        json.loads("{")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = JobLogFormatter({}).format(made)
    assert "\n" not in line
    assert json.loads(line)["exception"].startswith("Traceback (most recent call last):\n")


def test_what_json_cannot_hold_is_written_as_text() -> None:
    line = JobLogFormatter({}).format(record(where={1, 2}, path=object))
    assert json.loads(line)["where"] == "{1, 2}"


def test_no_text_of_others_makes_a_line_of_its_own() -> None:
    hostile = 'a\n{"level": "error"}\r\u2028\u202e\x1b[2J\x9b\ud800'
    line = JobLogFormatter({"job": hostile}).format(record(member=hostile))
    assert line.isascii()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["member"], found["job"]) == (hostile, hostile)


def test_a_native_crash_leaves_the_stacks_in_the_log() -> None:
    code = """
import os, signal
from rollcall_runtime.worker.logs import configure_logs

def rebuild_group():
    os.kill(os.getpid(), signal.SIGSEGV)

configure_logs()
rebuild_group()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in ended.stderr
    assert "in rebuild_group" in ended.stderr
