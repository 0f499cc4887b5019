"""Detection, rebuild and stall are taken from the trainer's own lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hack.soak import cluster_observer, metrics_reader
from hack.soak.fault_plan import FaultKind
from hack.soak.soak_history import InjectedFault, LogLine
from hack.soak.soak_statistics import detection_seconds, figures, spread, stall_seconds
from tests.unit.hack.soak.histories import BEGAN, sound


def test_the_spread_of_no_values_is_no_number() -> None:
    assert spread([]) == {"n": 0}
    assert spread([3.0, 1.0, 2.0]) == {"n": 3, "median": 2.0, "p99": 3.0, "worst": 3.0}


def test_detection_lasts_from_the_fault_to_the_first_word_of_its_own_victim() -> None:
    history = sound()
    assert detection_seconds(history) == {FaultKind.KILL_ROLLOUT: [pytest.approx(0.02)]}
    history.faults = [replace(history.faults[0], uid="uid-cpu-b")]
    assert detection_seconds(history) == {}


def test_a_stall_is_the_longest_gap_less_the_usual_one() -> None:
    history = sound()
    history.lines = [
        line
        for line in history.lines
        if not (line.message.startswith("step") and BEGAN + 10.05 < line.time < BEGAN + 10.95)
    ]
    (stall,) = stall_seconds(history)[FaultKind.KILL_ROLLOUT]
    assert stall == pytest.approx(0.9, abs=0.01)


def test_a_stall_that_had_begun_before_is_not_the_faults() -> None:
    history = sound()
    history.faults = [
        InjectedFault(FaultKind.KILL_TRAINER, BEGAN + 10, BEGAN + 10),
        InjectedFault(FaultKind.KILL_ROLLOUT, BEGAN + 15, BEGAN + 15, "cpu-a", "uid-cpu-a"),
    ]
    history.lines = [line for line in history.lines if not BEGAN + 10 < line.time < BEGAN + 20]
    stalls = stall_seconds(history)
    assert stalls[FaultKind.KILL_TRAINER] == [pytest.approx(9.9, abs=0.2)]
    assert stalls[FaultKind.KILL_ROLLOUT] == [pytest.approx(0, abs=0.01)]


def test_a_stall_that_the_next_fault_makes_is_not_the_faults_before() -> None:
    history = sound()
    history.faults = [
        InjectedFault(FaultKind.KILL_ROLLOUT, BEGAN + 15, BEGAN + 15, "cpu-a", "uid-cpu-a"),
        InjectedFault(FaultKind.KILL_TRAINER, BEGAN + 20, BEGAN + 20),
    ]
    history.lines = [line for line in history.lines if not BEGAN + 20 < line.time < BEGAN + 30]
    stalls = stall_seconds(history)
    assert stalls[FaultKind.KILL_ROLLOUT] == [pytest.approx(0, abs=0.01)]
    assert stalls[FaultKind.KILL_TRAINER] == [pytest.approx(9.9, abs=0.2)]


def test_faults_that_did_not_take_place_are_not_counted() -> None:
    history = sound()
    history.faults.append(
        InjectedFault(FaultKind.SCALE, BEGAN + 20, BEGAN + 20, trouble="no answer")
    )
    found = figures(history)
    assert found["faults"] == {"total": 1, "kill-rollout": 1}
    assert found["not_injected"] == ["scale: no answer"]
    assert found["rebuild"]["worst"] == 0.08
    assert found["sessions"] == {"total": 1, "MemberLost": 1}


def test_log_lines_are_read_as_the_node_keeps_them() -> None:
    text = (
        '2026-01-02T03:04:05.678901234Z stderr F {"time": "2026-01-02T03:04:05.678+00:00", '
        '"level": "info", "message": "step 3: reward 0.1"}'
    )
    line = cluster_observer.parse(text, pod="p", uid="u")
    assert line is not None
    assert line.message == "step 3: reward 0.1"
    assert line.time % 60 == pytest.approx(5.678)
    raw = cluster_observer.parse("2026-01-02T03:04:05.6Z stderr F Traceback", pod="p", uid="u")
    assert raw == LogLine(line.time // 1, "p", "u", "Traceback", "raw")
    assert cluster_observer.parse("", pod="p", uid="u") is None


def test_metrics_keep_the_label_that_distinguishes_lines() -> None:
    text = (
        '# HELP rollcall_step x\nrollcall_step{group="default",job="j"} 3.0\n'
        'rollcall_prompts_total{group="default",job="j",outcome="accepted"} 5.0\n'
        'rollcall_staleness_versions_bucket{group="default",job="j",le="2.0"} 7.0\nprocess_x 1\n'
    )
    assert metrics_reader.parse(text) == {
        "step": 3.0,
        "prompts_total{accepted}": 5.0,
        "staleness_versions_bucket{2.0}": 7.0,
    }
