"""Every metric of every process has a help text, a unit, and labels with few values."""

import re

import pytest

from tests.golden.metrics import MetricText, by_process

UNITS = ("seconds", "bytes", "versions", "ratio", "fraction", "per_second")
COUNTERS_END = "_total"

# Gauges of what has no unit: how many of the things that the name says.
COUNTS = {
    *("buffer_depth", "coordinator_streams", "front_requests_running", "front_rollouts"),
    *("front_trajectories", "job_members", "job_rollouts", "jobs", "members", "prompts_in_flight"),
    *("queue_depth", "requests_running", "rollout_front_requests"),
}
# Ordinal numbers, and what the model or the user's function gives a scale of its own.
NUMBERS = {
    *("epoch", "job_acknowledged_epoch", "job_epoch", "session_attempt", "step", "weight_version"),
    *("entropy", "evaluation_reward", "grad_norm", "job_phase", "leader", "loss", "mismatch_kl"),
    *("reward", "rollout_reward", "rollout_reward_part"),
}

# What bounds the number of a label's values. A pod's name or uid, a prompt or an error's text does
# not: each would leave a series behind for ever.
BOUNDED = {
    "namespace": "those of the RLJobs",
    "job": "the RLJobs",
    "group": "the job's weightSync.groups",
    "pool": "the job's RolloutPools",
    "part": "the job's reward.parts",
    "phase": "JobPhase",
    "state": "MemberState, Wanted and Ready",
    "cause": "EpochCause, SessionCause or SuspicionCause",
    "bound": "TimeBound",
    "kind": "RewardErrorKind",
    "outcome": "constants of the code",
    "reason": "constants of the code",
    "result": "constants of the code",
    "what": "constants of the code",
    "resource": "the kinds that the operator reads and writes",
    "verb": "the requests that it makes",
    "status": "HTTP's",
}

EVERY = [
    pytest.param(metric, id=f"{process}-{metric.name}")
    for process, metrics in by_process().items()
    for metric in sorted(metrics)
]


def test_all_kinds_of_process_are_looked_at() -> None:
    sizes = {process: len(metrics) for process, metrics in by_process().items()}
    assert set(sizes) == {"Operator", "Trainer", "Rollout", "Front", "Reference"}
    assert min(sizes.values()) >= 3


@pytest.mark.parametrize("metric", EVERY)
def test_a_metric_says_what_it_is_and_in_which_unit(metric: MetricText) -> None:
    name = metric.name.removeprefix("rollcall_")
    assert name != metric.name
    assert re.fullmatch(r"[A-Z0-9].{15,}\.", metric.help)
    if metric.kind == "counter":
        assert name.endswith(COUNTERS_END)
    elif metric.kind in {"histogram", "summary"}:
        assert name.endswith(("seconds", "bytes", "versions"))
    else:
        assert name.endswith(UNITS) or name in COUNTS | NUMBERS


@pytest.mark.parametrize("metric", EVERY)
def test_the_labels_of_a_metric_have_few_values(metric: MetricText) -> None:
    assert set(metric.labels) <= set(BOUNDED)


def test_the_tables_of_names_without_a_unit_hold_nothing_else() -> None:
    gauges = {
        metric.name.removeprefix("rollcall_")
        for metrics in by_process().values()
        for metric in metrics
        if metric.kind == "gauge"
    }
    assert gauges >= COUNTS | NUMBERS
    assert not [name for name in COUNTS | NUMBERS if name.endswith(UNITS)]
