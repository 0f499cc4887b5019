"""A job's record as the API server and a trainer give it."""

from typing import Any

from rollcall_cli.job_record import JobRecord
from rollcall_protocol.step_history import StepRow

BEGAN = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def step_row(number: int) -> StepRow:
    """As a trainer writes it, ten seconds after the one before."""
    figures = {
        "reward/mean": number / 10,
        "reward/min": 0.0,
        "reward/max": 1.0,
        "actor/pg_loss": 0.1,
        "staleness/mean": 1.0,
        "staleness/max": 2.0,
        "perf/tokens_per_second": 500.0,
        "trainer/idle_ratio": 0.25,
        "timing_s/step": 10.0,
        "timing_s/train": 6.0,
        "timing_s/stage": 0.5,
        "timing_s/commit": 0.05,
        "response_length/mean": 6.0,
    }
    return StepRow(number, BEGAN + 10 * number, figures)


def job(**status: Any) -> dict[str, Any]:
    """Of two epochs, the second of which lost a rollout."""
    epochs = [
        {"epoch": 1, "cause": "JobStarted", "members": 3, "time": "2027-01-15T07:59:50Z"},
        {
            "epoch": 2,
            "cause": "MemberLost",
            "message": "lost: reverse-cpu-x (gone)",
            "members": 2,
            "time": "2027-01-15T08:00:35.500000Z",
        },
    ]
    return {
        "apiVersion": "rollcall.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "reverse", "namespace": "team", "uid": "job-uid"},
        "spec": {"algorithm": {"maxSteps": 10}},
        "status": {
            "phase": "Running",
            "progress": {"step": 9, "maxSteps": 10, "weightVersion": 9, "rolloutReward": "0.9"},
            "syncGroups": [{"name": "default", "history": epochs}],
            **status,
        },
    }


def record(**changes: Any) -> JobRecord:
    """With nine steps."""
    given = {"job": job(), "steps": [step_row(number) for number in range(1, 10)]}
    return JobRecord(**given | changes)
