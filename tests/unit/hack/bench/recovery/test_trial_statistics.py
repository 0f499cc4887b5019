"""Figures of the recovery bench: from trials to its last line."""

from pathlib import Path

import numpy as np
import pytest

from hack import svg_file
from hack.bench.recovery import chart
from hack.bench.recovery.trial_statistics import (
    TrialResult,
    breakdown,
    kept_up,
    longest_step,
    percentile,
    phases,
    summarize,
    total_at,
    usual_step,
    where,
)


@pytest.mark.parametrize(
    ("count", "part", "expected"), [(50, 0.99, 50), (100, 0.99, 99), (1, 0.99, 1), (4, 0.5, 2)]
)
def test_a_percentile_is_a_value_that_was_seen(count: int, part: float, expected: int) -> None:
    assert percentile([float(value) for value in range(count, 0, -1)], part) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.99)


def test_each_event_has_its_own_statistics_and_failures_are_counted() -> None:
    records = [
        TrialResult("stop", 3.2),
        TrialResult("kill_idle", 0.1),
        TrialResult("stop", 3.4),
        TrialResult("stop", None, {"error": "TimeoutError"}),
        TrialResult("scale_up", None),
    ]
    assert summarize(records) == {
        "kill_idle": {"n": 1, "median": 0.1, "p99": 0.1, "worst": 0.1},
        "scale_up": {"n": 0, "failed": 1},
        "stop": {"n": 2, "median": 3.3, "p99": 3.4, "worst": 3.4, "failed": 1},
    }


def test_phases_go_from_mark_to_mark_and_skip_what_was_not_seen() -> None:
    marks = [("start", 10.0), ("imports", 11.5), ("stream", None), ("in sync", 12.0)]
    assert phases(marks) == {"imports": 1.5, "in sync": 0.5}


def test_a_breakdown_has_the_median_of_each_phase_of_one_event() -> None:
    records = [
        TrialResult("scale_up", 1.0, {"phases": {"imports": seconds}})
        for seconds in (1.0, 3.0, 2.0)
    ]
    records.append(TrialResult("trainer_kill", 1.0, {"phases": {"imports": 9.0}}))
    assert breakdown(records, "scale_up") == {"imports": 2.0}


def test_tokens_of_all_trials_are_compared_with_the_expected_number() -> None:
    short = {"before": 10.0, "seconds": 1.0, "drawn": 0.0}
    long = {"before": 20.0, "seconds": 2.0, "drawn": 45.0}
    records = [TrialResult("join_cost", 1.0, short), TrialResult("join_cost", 2.0, long)]
    records.append(TrialResult("join_cost", None, {"error": "TimeoutError"}))
    assert kept_up(records) == 0.9
    assert kept_up([]) is None


def test_a_counter_between_two_samples_lies_on_the_line_between_them() -> None:
    samples = [(1.0, 10.0), (2.0, 20.0), (4.0, 20.0)]
    assert [total_at(samples, at) for at in (1.0, 1.5, 3.0)] == [10.0, 15.0, 20.0]
    with pytest.raises(ValueError, match="no samples around"):
        total_at(samples, 4.5)


def test_the_table_has_a_row_for_each_event_with_its_goal() -> None:
    records = [
        TrialResult("kill_stage", 0.25),
        TrialResult("kill_stage", None),
        TrialResult("stop", None),
    ]
    records.append(TrialResult("scale_up", 2.0, {"phases": {"imports": 1.5}}))
    *_, kill, scale, blank, phases_ = chart.table(records).splitlines()
    assert kill.endswith("| 1 (1 failed) | 0.25 | 0.25 | 0.25 | 0.3, 1 |")
    assert scale.endswith("| 1 | 2.00 | 2.00 | 2.00 | 3, 6 |")
    assert (blank, phases_) == ("", "`scale_up`, medians of its phases: imports 1.50")


def test_the_longest_step_is_sought_among_those_that_a_fault_can_have_touched() -> None:
    ends = [0.0, 5.0, 5.5, 6.0, 7.5, 8.0, 20.0]
    assert longest_step(ends, since=5.2, until=7.0) == 1.5, "steps before and after do not count"
    assert longest_step(ends, since=30.0, until=31.0) == 0.0


def test_the_usual_step_is_the_median_of_those_before_the_fault() -> None:
    assert usual_step([0.0, 1.0, 2.0, 3.0, 13.0], before=3.5) == 1.0


def test_a_moment_belongs_to_the_phase_of_the_publication_that_it_falls_into() -> None:
    found = [where(at, began=1.0, staged=2.0) for at in (0.9, 1.0, 1.9, 2.0)]
    assert found == ["idle", "stage", "stage", "commit"]


def test_the_chart_has_a_dot_for_each_trial_that_ended(tmp_path: Path) -> None:
    records = [
        TrialResult("kill_idle", 0.1),
        TrialResult("kill_idle", 0.2),
        TrialResult("stop", 9.0),
    ]
    records.append(TrialResult("scale_up", None))
    figure = chart.draw(records, caption="commit 0123abcd")
    (axes,) = figure.axes
    assert [np.shape(dots.get_offsets()) for dots in axes.collections] == [(2, 2)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rollout killed, idle"]
    assert axes.get_xlabel() == "seconds\ncommit 0123abcd", "the chart names the run"
    svg_file.save(figure, tmp_path / "chart.svg")
    assert "rollout killed, idle" in (tmp_path / "chart.svg").read_text()
    with pytest.raises(ValueError, match="no figures"):
        chart.draw([], caption="")
