"""The ranks of a pod start and end together, and its exit says why."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.train.local_ranks import EndedRank, decisive
from tests.unit.rollcall_runtime.train import pod_of_ranks

WORKLOADS = str(Path(pod_contract.__file__).parents[1])
ENOUGH_SECONDS = 20.0

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Start]:
    """Starts a pod whose two ranks (2 and 3 of the trainer) do what they are given to do."""
    started = []

    def start(*acts: str, end_seconds: float = 10.0) -> subprocess.Popen[bytes]:
        (tmp_path / "log").touch()
        variables = {f"ACT_{number}": what for number, what in enumerate(acts)}
        process = subprocess.Popen(
            [sys.executable, pod_of_ranks.__file__],
            env={
                "PYTHONPATH": WORKLOADS,
                "PATH": os.environ["PATH"],
                pod_contract.STATE_DIR: str(tmp_path),
                "LOG": str(tmp_path / "log"),
                "END_SECONDS": str(end_seconds),
                **variables,
            },
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks, which would wait for ever
        process.wait(ENOUGH_SECONDS)


def message(folder: Path) -> str:
    return (folder / "log").read_text()


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENOUGH_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def both_started(folder: Path) -> bool:
    return all((folder / pod_of_ranks.STARTED.format(rank)).exists() for rank in (0, 1))


def children(pid: int) -> list[str]:
    """Pids of its child processes, also of those that have ended and were not collected."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_signal_to_stop_reaches_all_ranks(pod: Start, tmp_path: Path) -> None:
    process = pod("wait", "wait")
    wait_until(lambda: both_started(tmp_path))
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH_SECONDS) == ExitCode.OK
    assert message(tmp_path) == ""


def test_a_rank_that_takes_its_time_to_stop_gets_no_second_signal(
    pod: Start, tmp_path: Path
) -> None:
    process = pod("save", "wait")
    wait_until(lambda: both_started(tmp_path))
    process.send_signal(signal.SIGTERM)
    assert process.wait(ENOUGH_SECONDS) == ExitCode.OK


def test_the_pod_ends_as_the_rank_that_failed_did(pod: Start, tmp_path: Path) -> None:
    process = pod("wait", "exit:3:ValueError: no reward (task.py:1 in score)")
    assert process.wait(ENOUGH_SECONDS) == 3
    assert message(tmp_path) == "ValueError: no reward (task.py:1 in score)"


def test_a_killed_rank_is_named(pod: Start, tmp_path: Path) -> None:
    assert pod("kill", "wait").wait(ENOUGH_SECONDS) == 128 + signal.SIGKILL
    assert message(tmp_path) == (
        "rank 2 (process 0 of the pod) was ended by signal SIGKILL (did the pod have too little "
        "memory?)"
    )


def test_a_rank_that_does_not_end_with_the_others_is_killed(pod: Start, tmp_path: Path) -> None:
    process = pod("ignore", "exit:1:broken", end_seconds=0.2)
    assert process.wait(ENOUGH_SECONDS) == ExitCode.FAILED
    assert message(tmp_path) == "broken"


def test_after_a_signal_to_stop_ranks_have_the_time_that_the_kubelet_gives(
    pod: Start, tmp_path: Path
) -> None:
    process = pod("ignore", "ignore", end_seconds=0.1)
    wait_until(lambda: both_started(tmp_path))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)


def test_processes_that_ranks_leave_behind_are_collected(pod: Start, tmp_path: Path) -> None:
    process = pod("orphan", "orphan")
    wait_until(lambda: both_started(tmp_path))
    wait_until(lambda: len(children(process.pid)) == 2)


OK, FAILED, BAD_CONFIG = ExitCode.OK, ExitCode.FAILED, ExitCode.BAD_CONFIG


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        pytest.param([OK, OK], 0, id="all stopped"),
        pytest.param([-9, FAILED], 0, id="the first was killed"),
        pytest.param([OK, FAILED], 1, id="one failed while the other had stopped"),
        pytest.param([FAILED, BAD_CONFIG], 1, id="the second says which field is wrong"),
        pytest.param([FAILED, ExitCode.OUT_OF_MEMORY], 1, id="the second had too little memory"),
    ],
)
def test_which_ranks_end_explains_the_others(codes: list[int], expected: int) -> None:
    ended = [EndedRank(number, code) for number, code in enumerate(codes)]
    assert decisive(ended).local_rank == expected
