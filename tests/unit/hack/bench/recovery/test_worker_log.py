"""What the recovery bench reads in the nodes' files: logs of containers, and processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hack.bench.recovery import worker_log
from hack.bench.recovery.pod_processes import worker, workers
from hack.bench.recovery.worker_log import LoggedSession, LoggedStep, LoggedVersion, WorkerLog
from rollcall_protocol.pod_contract import POD_UID

SAID = "2026-01-02T03:04:05.250+00:00"
AT = 1767323045.25


def entry(message: str, *, time: str = SAID) -> str:
    value = json.dumps({"time": time, "level": "info", "message": message})
    return f"2026-01-02T03:04:05.251234567Z stderr F {value}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the node keeps a pod's log."""
    monkeypatch.setattr(worker_log, "log_folders", lambda _: [tmp_path])
    return tmp_path


def test_a_trainers_lines_become_events_at_the_time_when_they_were_said(folder: Path) -> None:
    (folder / "0.log").write_text(
        entry("step 7: reward 0.125, loss 0.0000, gradient norm 0.000")
        + entry("session 3.1.2 formed: 4 members, 0.120 s after MemberLost r-1: reset")
        + entry("version 7 published: 4 members, staged in 0.050 s, committed in 0.200 s")
        + "2026-01-02T03:04:05.251234567Z stderr F Traceback (most recent call last):\n"
        + entry("something else")
    )
    log = WorkerLog("uid")
    log.look()
    step, session, published = log.events
    assert step == LoggedStep(AT, 7)
    assert session == LoggedSession(AT, 4, "MemberLost")
    assert isinstance(published, LoggedVersion)
    assert (published.began, published.staged) == pytest.approx((AT - 0.25, AT - 0.2))
    assert [line.message for line in log.lines][-1] == "something else"
    assert log.first("something") == AT


def test_half_a_line_is_read_when_it_is_whole(folder: Path) -> None:
    whole = entry("step 1: x")
    (folder / "0.log").write_text(whole[:80])
    log = WorkerLog("uid")
    log.look()
    assert log.events == []
    with (folder / "0.log").open("a") as file:
        file.write(whole[80:])
    assert log.wait(LoggedStep, after=0.0, seconds=1.0).number == 1


def test_an_event_that_is_missing_is_an_error(folder: Path) -> None:
    (folder / "2.log").write_text(entry("step 1: x"))
    log = WorkerLog("uid", restarts=2)
    with pytest.raises(TimeoutError, match="no LoggedStep"):
        log.wait(LoggedStep, after=AT, seconds=0.0)


def test_a_pods_worker_is_its_oldest_process() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    variables = {**os.environ, POD_UID: "a-pod-of-this-test"}
    before = time.time()
    command = [sys.executable, "-c", code, "rollcall-worker"]
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE) as child:
        found = worker("a-pod-of-this-test", seconds=5.0)
        assert found.pid == child.pid
        assert before - 0.1 <= found.started <= time.time()
        assert found.alive()
    assert not found.alive()
    assert workers(["a-pod-of-this-test"]) == {}
