"""The naive policy restarts when a collective has timed out, and no sooner or later."""

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from hack.bench.recovery import naive_restart, worker_log
from hack.bench.recovery.bench_job import BenchJobSettings, manifests
from hack.bench.recovery.worker_log import LoggedStep, WorkerLog

if TYPE_CHECKING:
    from hack.bench.recovery.bench_job import BenchJob

STOPPED = 1000.0


class Pods:
    """Stands in for the job and its processes: records what is done, and when a step is logged."""

    trainer_log: WorkerLog

    def __init__(self) -> None:
        self.done: list[str] = []
        self.settings = BenchJobSettings(3)
        self.pod_uid = "t"
        self.trainer = self

    def rollouts(self) -> dict[str, Any]:
        return {"a": self, "b": self}

    def pod_name(self, uid: str) -> str:
        return uid

    def send(self, number: int) -> float:
        self.done.append(f"signal {int(number)}")
        return STOPPED

    def alive(self) -> bool:
        return False

    def delete_now(self, *pods: str) -> None:
        self.done.append(f"delete {len(pods)}")

    def follow(self, _process: Any) -> None: ...

    def serving(self, _rollouts: int) -> None: ...

    def steps(self, _count: int) -> None: ...


def line(at: float, message: str) -> str:
    time = datetime.fromtimestamp(at, tz=UTC).isoformat()
    return f"2026 stdout F {json.dumps({'time': time, 'message': message})}\n"


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pods:
    """Logs of the trainer and of two rollouts in a folder; the trainer's has a later step."""
    for uid in "tab":
        (tmp_path / f"{uid}.log").write_text(line(900, "TimedOutError: of an earlier trial"))
    monkeypatch.setattr(worker_log, "_find", lambda uid, _life, _seconds: tmp_path / f"{uid}.log")
    monkeypatch.setattr(naive_restart, "TIME_OUT_SECONDS", 0.05)
    monkeypatch.setattr(naive_restart, "worker", lambda _uid, seconds: seconds)
    monkeypatch.setattr(naive_restart, "other_pod", lambda _job, uid: uid)
    monkeypatch.setattr(random, "choice", lambda values: values[0])
    found = Pods()
    found.trainer_log = WorkerLog("t")
    found.trainer_log.events.append(LoggedStep(1030.0, 8))
    return found


def test_everything_is_restarted_when_a_survivor_saw_the_collective_time_out(
    pods: Pods, tmp_path: Path
) -> None:
    with (tmp_path / "b.log").open("a") as file:
        file.write(line(1007.25, "TimedOutError: gloo: Timed out waiting 5000ms"))
    (result,) = naive_restart.stop(cast("BenchJob", pods))
    assert pods.done == ["signal 19", "delete 3"]
    assert result.event == "naive_stop"
    assert result.seconds == pytest.approx(30.0)
    assert result.details == pytest.approx({"timed_out": 7.25, "restart": 22.75})


def test_without_a_time_out_there_is_no_result(pods: Pods) -> None:
    with pytest.raises(TimeoutError, match="no collective timed out"):
        naive_restart.stop(cast("BenchJob", pods))
    assert pods.done == ["signal 19"]


@pytest.mark.parametrize(("detection", "bound"), [(True, 700), (False, 3_600_000)])
def test_without_detection_no_member_is_suspected_within_a_trial(
    detection: bool, bound: int
) -> None:
    (job,) = manifests(BenchJobSettings(3, detection=detection))
    assert job["spec"]["membership"]["suspectAfterMilliseconds"] == bound
