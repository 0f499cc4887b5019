"""One job: what it learns, where its time goes, its rollouts and its epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grafana_foundation_sdk.builders import dashboard as builders

from hack.monitoring.dashboards.panels import (
    DATASOURCE,
    RATE,
    Panel,
    Query,
    Section,
    add,
    mean_of,
    new_dashboard,
    quantile_of,
    variable,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import Dashboard, QueryVariable

HERE = 'namespace=~"$namespace", job=~"$job"'


def _gauge(name: str, legend: str) -> Query:
    """A gauge of the trainer, without the steps that have no such figure."""
    return Query(f"max by (job) (rollcall_{name}{{{HERE}}} >= -Inf)", legend)


def _share(part: str) -> str:
    seconds, steps = (
        f"sum by (job) (rate(rollcall_{name}_sum{{{HERE}}}[{RATE}]))"
        for name in (part, "step_seconds")
    )
    return f"{seconds} / {steps}"


def _of_a_step(part: str) -> str:
    return (
        f"sum by (job) (rate(rollcall_{part}_sum{{{HERE}}}[{RATE}]))"
        f" / sum by (job) (rate(rollcall_step_seconds_count{{{HERE}}}[{RATE}]))"
    )


LEARNING = Section(
    "Learning",
    (
        Panel(
            "Reward",
            "Of the last batch, of the rollouts' own samples, and of held-out prompts.",
            (
                _gauge("reward", "batch"),
                Query(
                    f'avg by (pool) (rollcall_rollout_reward{{{HERE}, pool!=""}} >= -Inf)',
                    "rollouts {{pool}}",
                ),
                _gauge("evaluation_reward", "held-out prompts"),
            ),
        ),
        Panel(
            "Loss and gradient",
            "Of the last step; the gradient's norm is that before clipping.",
            (_gauge("loss", "loss"), _gauge("grad_norm", "gradient norm")),
        ),
        Panel(
            "Mismatch, clipping, entropy",
            "Mismatch KL far above 0: rollouts and trainer compute different probabilities of the "
            "same tokens with the same weights.",
            (
                _gauge("mismatch_kl", "mismatch KL (nats a token)"),
                _gauge("clip_fraction", "clip fraction"),
                _gauge("entropy", "entropy (nats)"),
            ),
        ),
        Panel(
            "Staleness of what is trained on",
            "In weight versions; never above the job's maxStaleness.",
            (
                Query(mean_of("rollcall_staleness_versions", "job", HERE), "mean"),
                Query(quantile_of(0.99, "rollcall_staleness_versions", "job", HERE), "p99"),
            ),
        ),
        Panel(
            "Prompts by outcome, a second",
            "rejected_Stale: samples were too old when their batch came (off-policy dropped).",
            (
                Query(
                    "sum by (outcome) (rate(rollcall_prompts_total{"
                    f'{HERE}, outcome!~"dispatched|rejected"}}[{RATE}]))',
                    "{{outcome}}",
                ),
                Query(
                    f"sum by (job) (rate(rollcall_off_policy_dropped_total{{{HERE}}}[{RATE}]))",
                    "off-policy dropped",
                ),
            ),
        ),
        Panel(
            "What went wrong",
            "Errors of the reward function by kind, skipped steps, checkpoints that failed.",
            (
                Query(
                    f"sum by (kind) (increase(rollcall_reward_errors_total{{{HERE}}}[{RATE}]))",
                    "reward {{kind}}",
                ),
                Query(
                    f"sum by (job) (increase(rollcall_skipped_steps_total{{{HERE}}}[{RATE}]))",
                    "skipped steps",
                ),
                Query(
                    "sum by (job) "
                    f"(increase(rollcall_checkpoint_failures_total{{{HERE}}}[{RATE}]))",
                    "failed checkpoints",
                ),
            ),
            bars=True,
        ),
    ),
)

TIME = Section(
    "Time",
    (
        Panel(
            "Idle ratio of the trainer",
            "What it waits for. wait for batch: more rollouts, or a higher maxStaleness. wait for "
            "policy: weight sync is slower than a step.",
            (
                _gauge("trainer_idle_ratio", "last step"),
                Query(_share("wait_for_batch_seconds"), "wait for batch"),
                Query(_share("wait_for_policy_seconds"), "wait for policy"),
            ),
            unit="percentunit",
        ),
        Panel(
            "Where the time of a step goes",
            "Mean seconds of a step.",
            (
                Query(_of_a_step("train_seconds"), "train"),
                Query(_of_a_step("wait_for_batch_seconds"), "wait for batch"),
                Query(_of_a_step("wait_for_policy_seconds"), "wait for policy"),
                Query(_of_a_step("param_sync_snapshot_seconds"), "copy of the weights"),
                Query(_of_a_step("wait_for_reference_seconds"), "wait for reference"),
            ),
            unit="s",
            stacked=True,
        ),
        Panel(
            "Phases of a sync",
            "Mean seconds: copy of the weights, stage on all members, commit on all members.",
            (
                Query(mean_of("rollcall_param_sync_snapshot_seconds", "job", HERE), "snapshot"),
                Query(mean_of("rollcall_param_sync_stage_seconds", "job", HERE), "stage"),
                Query(mean_of("rollcall_param_sync_commit_seconds", "job", HERE), "commit"),
            ),
            unit="s",
            stacked=True,
        ),
        Panel(
            "Tokens a second",
            "Trained on by the trainer, and sampled by the rollouts.",
            (
                _gauge("tokens_per_second", "trained on"),
                Query(
                    f"sum by (pool) (rate(rollcall_tokens_total{{{HERE}}}[{RATE}]))",
                    "sampled {{pool}}",
                ),
            ),
        ),
        Panel(
            "Steps a minute",
            "Optimizer steps.",
            (
                Query(
                    f"60 * sum by (job) (rate(rollcall_step_seconds_count{{{HERE}}}[{RATE}]))",
                    "steps",
                ),
            ),
        ),
        Panel(
            "Prompts in flight",
            "Dispatched without an outcome, and of these, those whose samples wait for a batch.",
            (
                Query(f"max by (job) (rollcall_prompts_in_flight{{{HERE}}})", "in flight"),
                Query(f"max by (job) (rollcall_buffer_depth{{{HERE}}})", "buffered"),
            ),
        ),
    ),
)

MEMBERSHIP = Section(
    "Rollouts and epochs",
    (
        Panel(
            "Epochs by cause",
            "The roster's epoch, and what opened each one.",
            (
                Query(f"max by (job) (rollcall_job_epoch{{{HERE}}})", "epoch"),
                Query(
                    f"sum by (cause) (increase(rollcall_job_epochs_total{{{HERE}}}[{RATE}]))",
                    "{{cause}}",
                ),
            ),
            bars=True,
        ),
        Panel(
            "Weight lag of each pod",
            "Published versions that the rollout does not serve yet.",
            (
                Query(
                    f"max by (pod) (rollcall_weight_lag_versions{{{HERE}}})",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "Rollouts by state",
            "As the coordinator reports them; Wanted and Ready as Kubernetes does.",
            (
                Query(
                    f"sum by (state) (max by (pool, state) (rollcall_job_rollouts{{{HERE}}})) > 0",
                    "{{state}}",
                ),
            ),
        ),
        Panel(
            "Restarts",
            "Of the trainer, and of workers' processes by role.",
            (
                Query(
                    "max by (job) (increase(rollcall_job_trainer_restarts_total"
                    f"{{{HERE}}}[{RATE}]))",
                    "trainer, counted by the operator",
                ),
                Query(
                    f"sum by (role) (changes(process_start_time_seconds{{{HERE}}}[{RATE}]))",
                    "{{role}}",
                ),
            ),
            bars=True,
        ),
        Panel(
            "Time to form a session",
            "From a cause, such as a lost member, until the members' session was usable.",
            (Query(mean_of("rollcall_rebuild_seconds", "cause", HERE), "{{cause}}"),),
            unit="s",
        ),
        Panel(
            "Phase and coordinator",
            "The job's phase, and how long its coordinator has sent nothing to the operator.",
            (
                Query(f"max by (phase) (rollcall_job_phase{{{HERE}}})", "{{phase}}"),
                Query(
                    f"max by (job) (rollcall_job_coordinator_silent_seconds{{{HERE}}})",
                    "seconds of silence",
                ),
            ),
        ),
    ),
)

SECTIONS = (LEARNING, TIME, MEMBERSHIP)


def choice_of_a_job() -> tuple[QueryVariable, QueryVariable]:
    """One namespace, and one of its jobs."""
    return (
        variable("namespace", "label_values(rollcall_job_phase, namespace)", several=False),
        variable(
            "job", 'label_values(rollcall_job_phase{namespace="$namespace"}, job)', several=False
        ),
    )


def job() -> Dashboard:
    """The dashboard. Each epoch is a mark on all panels."""
    board = new_dashboard("Rollcall: job", "rollcall-job", "One RLJob.")
    for each in choice_of_a_job():
        board.with_variable(each)
    board.annotation(
        builders.AnnotationQuery()
        .name("Epochs")
        .datasource(DATASOURCE)
        .enable(enable=True)
        .icon_color("orange")
        .expr(f"sum by (cause) (changes(rollcall_job_epochs_total{{{HERE}}}[{RATE}])) > 0")
    )
    return add(board, SECTIONS)
