"""All jobs of some namespaces on one page, and the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.monitoring.dashboards.panels import (
    RATE,
    Panel,
    Query,
    Section,
    add,
    new_dashboard,
    quantile_of,
    variable,
)

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.dashboard import Dashboard

HERE = 'namespace=~"$namespace"'
ROLLOUTS = f"max by (namespace, job, pool, state) (rollcall_job_rollouts{{{HERE}, "

JOBS = Section(
    "Jobs",
    (
        Panel(
            "Jobs by phase",
            "Jobs that stay in Pending, Starting, Restarting or Unknown need a look.",
            (
                Query(
                    "count by (phase) (max by (namespace, job, phase) "
                    f"(rollcall_job_phase{{{HERE}}}))",
                    "{{phase}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Rollouts wanted, ready and in sync",
            "The three lines are one while nothing starts, leaves or fails.",
            (
                Query(
                    f'sum by (state) ({ROLLOUTS}state=~"Wanted|Ready|InSync"}}))',
                    "{{state}}",
                ),
            ),
        ),
        Panel(
            "Rollouts that do not serve current weights",
            "Above 0 for minutes: `rollcall status JOB` says who is behind, and why.",
            (
                Query(
                    f'sum by (namespace, job) ({ROLLOUTS}state=~"Stale|Suspect|CatchingUp"}}))',
                    "{{namespace}}/{{job}}",
                ),
            ),
        ),
        Panel(
            "Tokens that rollouts sample, a second",
            "What the fleet produces.",
            (
                Query(
                    f"sum by (namespace, job) (rate(rollcall_tokens_total{{{HERE}}}[{RATE}]))",
                    "{{namespace}}/{{job}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Idle ratio of the trainers",
            "Near 1: the trainer waits for samples; more rollouts would help.",
            (
                Query(
                    f"max by (namespace, job) (rollcall_trainer_idle_ratio{{{HERE}}} >= -Inf)",
                    "{{namespace}}/{{job}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Mean reward of the rollouts' samples",
            "What the jobs learn.",
            (
                Query(
                    "avg by (namespace, job) "
                    f'(rollcall_rollout_reward{{{HERE}, pool!=""}} >= -Inf)',
                    "{{namespace}}/{{job}}",
                ),
            ),
        ),
        Panel(
            "Epochs opened",
            "Each is a change of a job's roster. Many in a row: rollouts come and go.",
            (
                Query(
                    "sum by (namespace, job) "
                    f"(increase(rollcall_job_epochs_total{{{HERE}}}[{RATE}]))",
                    "{{namespace}}/{{job}}",
                ),
            ),
            bars=True,
        ),
        Panel(
            "Restarts of trainers",
            "Since the job was created. A trainer restarts from its last checkpoint.",
            (
                Query(
                    f"max by (namespace, job) (rollcall_job_trainer_restarts_total{{{HERE}}})",
                    "{{namespace}}/{{job}}",
                ),
            ),
        ),
        Panel(
            "Alerts that fire",
            "docs/runbooks.md has a section for each.",
            (
                Query(
                    "sum by (alertname, namespace, job) "
                    '(ALERTS{alertstate="firing", alertname=~"Rollcall.*"})',
                    "{{alertname}} {{namespace}}/{{job}}",
                ),
            ),
        ),
    ),
)

OPERATOR = Section(
    "Operator",
    (
        Panel(
            "Reconciles a second, by result",
            "retry passes by itself; error and timeout are in the operator's log.",
            (
                Query(
                    f"sum by (result) (rate(rollcall_reconcile_seconds_count[{RATE}]))",
                    "{{result}}",
                ),
            ),
        ),
        Panel(
            "Time of a reconcile",
            "99 of 100 are faster.",
            (Query(quantile_of(0.99, "rollcall_reconcile_seconds", "", ""), "p99"),),
            unit="s",
        ),
        Panel(
            "Jobs that wait to be reconciled",
            "Above 0 for long: the operator does not keep up (`workers`, CPU limit).",
            (Query("max by (instance) (rollcall_queue_depth)", "{{instance}}"),),
        ),
        Panel(
            "Requests to the API server, a second",
            "By verb; status 0 is no answer, 429 means that the API server throttles the operator.",
            (
                Query(f"sum by (verb) (rate(rollcall_api_requests_total[{RATE}]))", "{{verb}}"),
                Query(
                    "sum by (status) "
                    f'(rate(rollcall_api_requests_total{{status=~"0|429|5.."}}[{RATE}]))',
                    "status {{status}}",
                ),
            ),
        ),
        Panel(
            "Watch events a second",
            "What changes in the cluster, as the operator sees it.",
            (
                Query(
                    f"sum by (resource) (rate(rollcall_watch_events_total[{RATE}]))",
                    "{{resource}}",
                ),
            ),
        ),
        Panel(
            "Coordinators, and pushes of rosters",
            "Open streams to coordinators; a push that is refused or fails is tried again.",
            (
                Query("max by (instance) (rollcall_coordinator_streams)", "streams"),
                Query(
                    f"sum by (result) (increase(rollcall_roster_pushes_total[{RATE}]))",
                    "pushes {{result}}",
                ),
            ),
        ),
        Panel(
            "Which replica leads",
            "Exactly one line is 1.",
            (Query("max by (instance) (rollcall_leader)", "{{instance}}"),),
        ),
        Panel(
            "CPU of the operator",
            "In cores.",
            (
                Query(
                    "max by (instance) (rate(process_cpu_seconds_total"
                    f"[{RATE}]) and on (instance) max by (instance) (rollcall_leader))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Memory of the operator",
            "Resident.",
            (
                Query(
                    "max by (instance) (process_resident_memory_bytes"
                    " and on (instance) max by (instance) (rollcall_leader))",
                    "{{instance}}",
                ),
            ),
            unit="bytes",
        ),
    ),
)

SECTIONS = (JOBS, OPERATOR)


def fleet() -> Dashboard:
    """The dashboard of all jobs of some namespaces and of the operator."""
    board = new_dashboard(
        "Rollcall: fleet",
        "rollcall-fleet",
        "All RLJobs of the chosen namespaces, and the operator.",
    )
    names = variable("namespace", "label_values(rollcall_job_phase, namespace)", several=True)
    return add(board.with_variable(names), SECTIONS)
