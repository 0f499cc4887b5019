"""Metrics carry the job's labels; the probes say what is wrong."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rollcall_runtime.worker.telemetry import (
    REWARD_WINDOW,
    Metrics,
    RolloutMetrics,
    TrainerMetrics,
)

JOB = {"namespace": "default", "job": "reverse", "group": "default"}


def served(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.name + "".join(f"{{{v}}}" for k, v in sample.labels.items() if k not in JOB): (
            sample.value
        )
        for sample in samples
    }


def test_the_reward_is_the_mean_of_the_newest_samples() -> None:
    metrics = RolloutMetrics(pool="cpu", **JOB)
    metrics.sampled(rewards=[0.0] * 10, tokens=60)
    metrics.sampled(rewards=[1.0] * REWARD_WINDOW, tokens=6 * REWARD_WINDOW)
    metrics.sampled(rewards=[0.0] * (REWARD_WINDOW // 2), tokens=0)
    values = served(metrics)
    assert values["rollcall_rollout_reward{cpu}"] == 0.5
    assert values["rollcall_rollout_samples_total{cpu}"] == 10 + 1.5 * REWARD_WINDOW
    assert values["rollcall_tokens_total{cpu}"] == 60 + 6 * REWARD_WINDOW


def test_each_part_of_a_reward_has_a_mean_of_its_own() -> None:
    metrics = RolloutMetrics(pool="cpu", **JOB)
    metrics.scored({"right": 1.0, "form": 0.0})
    metrics.scored({"right": 0.5, "form": 0.0})
    values = served(metrics)
    assert values["rollcall_rollout_reward_part{right}{cpu}"] == 0.75
    assert values["rollcall_rollout_reward_part{form}{cpu}"] == 0


def test_the_ledgers_totals_are_read_when_asked_for() -> None:
    metrics = TrainerMetrics(**JOB)
    totals = {"dispatched": 1}
    metrics.watch_prompts(lambda: totals, lambda: totals["dispatched"])
    totals["dispatched"] = 5
    assert served(metrics)["rollcall_prompts_total{dispatched}"] == 5
    assert served(metrics)["rollcall_prompts_in_flight"] == 5


def test_counters_have_their_cause_as_a_label() -> None:
    metrics = TrainerMetrics(**JOB)
    metrics.rebuild_seconds(cause="MemberLost").observe(0.5)
    metrics.refused(what="no_token").inc(2)
    values = served(metrics)
    assert values["rollcall_rebuild_seconds_count{MemberLost}"] == 1
    assert values["rollcall_refused_total{no_token}"] == 2
