"""The chart's rules in promtool: valid, and each alert fires when it should, and not otherwise.

Series have a sample every 30 s, in promtool's notation: `0+5x40` begins at 0 and grows by 5.
"""

import functools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.debian_packages import program_folder
from tests.apiserver.cluster import rendered

pytestmark = pytest.mark.slow

JOB = {"namespace": "team", "job": "reverse"}
IN_JOB = 'namespace="team", job="reverse"'
GROUP = f'{IN_JOB}, group="default"'
STEPS = f"rollcall_step_seconds_sum{{{GROUP}}}"
BATCH = f"rollcall_wait_for_batch_seconds_sum{{{GROUP}}}"
SYNC = f"rollcall_param_sync_seconds_%s{{{GROUP}}}"
ROLLOUTS = f'rollcall_job_rollouts{{{IN_JOB}, pool="cpu", state="%s"}}'
LAST_STEP = f"rollcall_last_step_timestamp_seconds{{{GROUP}}}"
PHASE = f'rollcall_job_phase{{{IN_JOB}, phase="%s"}}'
EPOCH = f"rollcall_job_epoch{{{GROUP}}}"
ACKNOWLEDGED = f"rollcall_job_acknowledged_epoch{{{IN_JOB}}}"
UP = 'up{job="rollcall-operator-metrics", namespace="rollcall-system"}'


@dataclass(frozen=True, slots=True)
class Case:
    """Samples at which an alert fires at the minute `at` with `labels`, and not yet at `before`.

    With the samples `quiet` it does not fire.
    """

    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    at: int
    before: int | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: JOB)
    severity: str = "warning"


CASES = {
    "RollcallOperatorDown": Case(
        fires={UP: "1x4 0x40"},
        quiet={UP: "1x40"},
        before=6,
        at=8,
        labels={},
        severity="critical",
    ),
    "RollcallNoLeader": Case(
        fires={
            'rollcall_leader{instance="a"}': "0x40",
            'rollcall_leader{instance="b"}': "1x4 0x40",
        },
        quiet={'rollcall_leader{instance="a"}': "0x40", 'rollcall_leader{instance="b"}': "1x40"},
        before=6,
        at=8,
        labels={},
    ),
    "RollcallReconcileErrors": Case(
        fires={'rollcall_reconcile_seconds_count{result="retry"}': "0+9x60"},
        quiet={
            'rollcall_reconcile_seconds_count{result="retry"}': "0+3x60",
            'rollcall_reconcile_seconds_count{result="ok"}': "0+300x60",
        },
        before=14,
        at=26,
        labels={},
    ),
    "RollcallApiThrottled": Case(
        fires={
            'rollcall_api_requests_total{verb="apply", resource="pods", status="429"}': "0+6x60"
        },
        quiet={
            'rollcall_api_requests_total{verb="apply", resource="pods", status="429"}': "0+1x60",
            'rollcall_api_requests_total{verb="apply", resource="pods", status="200"}': "0+600x60",
        },
        before=9,
        at=18,
        labels={"resource": "pods"},
    ),
    "RollcallCoordinatorSilent": Case(
        fires={f"rollcall_job_coordinator_silent_seconds{{{IN_JOB}}}": "0 0 30+30x20"},
        quiet={f"rollcall_job_coordinator_silent_seconds{{{IN_JOB}}}": "0 10x20"},
        before=1,
        at=3,
    ),
    "RollcallEpochUnacknowledged": Case(
        fires={EPOCH: "1 1 2x20", ACKNOWLEDGED: "1x20"},
        quiet={EPOCH: "1 1 2x20", ACKNOWLEDGED: "1 1 1 2x20"},
        before=1,
        at=3,
    ),
    "RollcallRolloutsStale": Case(
        fires={ROLLOUTS % "Suspect": "0 0 1x40", ROLLOUTS % "InSync": "2 2 1x40"},
        quiet={ROLLOUTS % "Suspect": "0 0 1x5 0x40", ROLLOUTS % "InSync": "2x40"},
        before=5,
        at=7,
        labels=JOB | {"pool": "cpu"},
    ),
    "RollcallTrainerStarved": Case(
        fires={STEPS: "0+30x60", BATCH: "0+20x60"},
        quiet={STEPS: "0+30x60", BATCH: "0+10x60"},
        before=14,
        at=18,
    ),
    "RollcallRebuildStorm": Case(
        fires={f'rollcall_job_sessions_total{{{GROUP}, cause="MemberLost"}}': "0+1x70"},
        quiet={f'rollcall_job_sessions_total{{{GROUP}, cause="MemberLost"}}': "0+0.4x70"},
        before=14,
        at=30,
        labels=JOB | {"group": "default"},
    ),
    "RollcallSyncSlow": Case(
        fires={SYNC % "sum": "0+90x60", SYNC % "count": "0+1x60"},
        quiet={SYNC % "sum": "0+90x60", SYNC % "count": "0+9x60"},
        before=9,
        at=14,
    ),
    "RollcallCheckpointFailing": Case(
        fires={f"rollcall_checkpoint_failures_total{{{GROUP}}}": "0x4 1x40"},
        quiet={f"rollcall_checkpoint_failures_total{{{GROUP}}}": "1x44"},
        before=1,
        at=4,
        severity="critical",
    ),
    "RollcallRewardNotFinite": Case(
        fires={f'rollcall_reward_errors_total{{{GROUP}, kind="not_finite"}}': "0x4 1x40"},
        quiet={
            f'rollcall_reward_errors_total{{{GROUP}, kind="not_finite"}}': "0x44",
            f'rollcall_reward_errors_total{{{GROUP}, kind="raised"}}': "0x4 9x40",
        },
        before=1,
        at=4,
    ),
    "RollcallJobStuck": Case(
        fires={LAST_STEP: "30x80", PHASE % "Running": "1x80"},
        quiet={LAST_STEP: "0+30x80", PHASE % "Running": "1x80"},
        before=28,
        at=32,
    ),
    "RollcallJobStuck while it starts": Case(
        fires={PHASE % "Starting": "1x80"},
        quiet={PHASE % "Suspended": "1x80", LAST_STEP: "30x80"},
        before=19,
        at=21,
    ),
}


@functools.cache
def rules() -> dict[str, Any]:
    objects = rendered("--set", "prometheusRule.enabled=true")
    (found,) = (body["spec"] for body in objects if body["kind"] == "PrometheusRule")
    spec: dict[str, Any] = found
    return spec


def promtool(*arguments: str | Path) -> str:
    """What it prints; fails if it does."""
    done = subprocess.run(
        [program_folder("prometheus") / "promtool", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def without_annotations() -> dict[str, Any]:
    """Rules without the texts of alerts, which promtool compares whole."""
    copy: dict[str, Any] = json.loads(json.dumps(rules()))
    for group in copy["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    return copy


def check_alert(folder: Path, name: str, samples: Mapping[str, str], at: int, alert: Any) -> None:
    """That at this minute the alert fires with these labels, or does not if they are None."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(without_annotations()))
    test = {
        "interval": "30s",
        "input_series": [{"series": s, "values": values} for s, values in samples.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{at}m",
                "alertname": name,
                "exp_alerts": [] if alert is None else [{"exp_labels": dict(alert)}],
            }
        ],
    }
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [test]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", folder / "tests.yaml")


def test_the_rules_are_valid(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    assert "SUCCESS: 19 rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def test_every_alert_has_a_case() -> None:
    names = {rule.get("alert") for group in rules()["groups"] for rule in group["rules"]} - {None}
    assert {name.partition(" ")[0] for name in CASES} == names


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_once_its_condition_has_held_long_enough(name: str, tmp_path: Path) -> None:
    alert, case = name.partition(" ")[0], CASES[name]
    if case.before is not None:
        check_alert(tmp_path, alert, case.fires, case.before, None)
    labels = {**case.labels, "severity": case.severity}
    check_alert(tmp_path, alert, case.fires, case.at, labels)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_does_not_fire_while_all_is_well(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    check_alert(tmp_path, name.partition(" ")[0], case.quiet, case.at, None)


def test_a_threshold_is_that_of_the_values() -> None:
    flags = ("prometheusRule.enabled=true", "prometheusRule.alerts.syncSlow.seconds=7")
    objects = rendered("--set", ",".join(flags))
    (found,) = (body["spec"] for body in objects if body["kind"] == "PrometheusRule")
    (slow,) = (
        r for g in found["groups"] for r in g["rules"] if r.get("alert", "")[8:] == "SyncSlow"
    )
    assert slow["expr"].endswith("> 7")
