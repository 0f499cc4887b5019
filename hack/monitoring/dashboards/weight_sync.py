"""How new weights reach the rollouts of one job, and how its sync groups are rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.monitoring.dashboards.job import HERE, choice_of_a_job
from hack.monitoring.dashboards.panels import (
    RATE,
    Panel,
    Query,
    Section,
    add,
    mean_of,
    new_dashboard,
    quantile_of,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import Dashboard


def _times(histogram: str) -> tuple[Query, ...]:
    """Mean and quantiles, by sync group."""
    return (
        Query(mean_of(histogram, "group", HERE), "{{group}} mean"),
        Query(quantile_of(0.5, histogram, "group", HERE), "{{group}} p50"),
        Query(quantile_of(0.99, histogram, "group", HERE), "{{group}} p99"),
    )


VERSIONS = Section(
    "Versions",
    (
        Panel(
            "Time of a sync",
            "From the start of a publication until all members serve the version.",
            _times("rollcall_param_sync_seconds"),
            unit="s",
        ),
        Panel(
            "Stage",
            "Until all members hold the version. Slow: the network, or one slow receiver.",
            _times("rollcall_param_sync_stage_seconds"),
            unit="s",
        ),
        Panel(
            "Commit",
            "From the order to load the version to its last acknowledgement: rollouts pause.",
            _times("rollcall_param_sync_commit_seconds"),
            unit="s",
        ),
        Panel(
            "Copy of the weights",
            "What training waits for before it goes on.",
            _times("rollcall_param_sync_snapshot_seconds"),
            unit="s",
        ),
        Panel(
            "Wait for policy",
            "Seconds that a step's end waits until the version before has arrived.",
            _times("rollcall_wait_for_policy_seconds"),
            unit="s",
        ),
        Panel(
            "Bytes a second",
            "What all rollouts together receive.",
            (
                Query(
                    f"sum by (group) (rate(rollcall_param_sync_bytes_total{{{HERE}}}[{RATE}]))",
                    "{{group}}",
                ),
            ),
            unit="Bps",
        ),
        Panel(
            "Versions a minute, whole and as deltas",
            "A delta is sent if all rollouts serve the version before.",
            (
                Query(
                    "60 * sum by (group) "
                    f"(rate(rollcall_param_sync_seconds_count{{{HERE}}}[{RATE}]))",
                    "{{group}} versions",
                ),
                Query(
                    "60 * sum by (group) "
                    f"(rate(rollcall_param_sync_deltas_total{{{HERE}}}[{RATE}]))",
                    "{{group}} deltas",
                ),
            ),
        ),
        Panel(
            "Version of each pod",
            "The trainer's newest, and what each rollout serves; -1 before the first.",
            (Query(f"max by (role, pod) (rollcall_weight_version{{{HERE}}})", "{{role}} {{pod}}"),),
        ),
        Panel(
            "Weight lag of each pool",
            "Published versions that its slowest rollout does not serve yet.",
            (
                Query(
                    f"max by (pool, group) (rollcall_weight_lag_versions{{{HERE}}})",
                    "{{pool}} {{group}}",
                ),
            ),
        ),
    ),
)

SESSIONS = Section(
    "Sessions of the sync groups",
    (
        Panel(
            "Sessions formed, by cause",
            "Another session is formed when members come, go or fail.",
            (
                Query(
                    "sum by (group, cause) "
                    f"(increase(rollcall_job_sessions_total{{{HERE}}}[{RATE}]))",
                    "{{group}} {{cause}}",
                ),
            ),
            bars=True,
        ),
        Panel(
            "Time to form a session (p99)",
            "From its cause until it was usable.",
            (
                Query(
                    quantile_of(0.99, "rollcall_rebuild_seconds", "group, cause", HERE),
                    "{{group}} {{cause}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Time to detect a failed member",
            "From its last bytes to the suspicion; mean since the trainer started.",
            (
                Query(
                    f"sum by (group, cause) (rollcall_detect_seconds_sum{{{HERE}}})"
                    f" / sum by (group, cause) (rollcall_detect_seconds_count{{{HERE}}})",
                    "{{group}} {{cause}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Members",
            "Of the session, with the trainer; seen by the coordinator and by the operator.",
            (
                Query(f"max by (group) (rollcall_members{{{HERE}}})", "{{group}} coordinator"),
                Query(f"max by (group) (rollcall_job_members{{{HERE}}})", "{{group}} operator"),
            ),
        ),
        Panel(
            "Epoch opened and acknowledged",
            "The lines part while the coordinator does not hold the newest roster.",
            (
                Query(f"max by (group) (rollcall_job_epoch{{{HERE}}})", "{{group}} opened"),
                Query(f"max by (job) (rollcall_job_acknowledged_epoch{{{HERE}}})", "acknowledged"),
            ),
        ),
        Panel(
            "Refused requests and messages",
            "By reason; docs/protocol.md and docs/security.md say what each means.",
            (
                Query(
                    f"sum by (what) (increase(rollcall_refused_total{{{HERE}}}[{RATE}]))",
                    "{{what}}",
                ),
            ),
            bars=True,
        ),
    ),
)

SECTIONS = (VERSIONS, SESSIONS)


def weight_sync() -> Dashboard:
    """The dashboard of one job's weight sync: time, bytes, versions, sessions."""
    board = new_dashboard(
        "Rollcall: weight sync", "rollcall-weight-sync", "How weights reach the rollouts of a job."
    )
    for each in choice_of_a_job():
        board.with_variable(each)
    return add(board, SECTIONS)
