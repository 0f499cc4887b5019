"""The chart shows each figure that has a goal, and whether that is met."""

from pathlib import Path

import pytest

from hack.bench.operator_load.chart import draw, merged
from hack.svg_file import save


def test_of_a_scenario_that_was_run_twice_the_last_run_counts() -> None:
    runs = [
        {"run": {}, "storm": {"p99_seconds": 2.0}, "idle500": {"cpu_share": 0.1}},
        {"run": {}, "storm": {"p99_seconds": 0.5}},
    ]
    assert merged(runs) == {"storm": {"p99_seconds": 0.5}, "idle500": {"cpu_share": 0.1}}


def test_the_chart_has_each_figure_with_its_goal_and_the_same_bytes_again(tmp_path: Path) -> None:
    figures = {"storm": {"p99_seconds": 2.0}, "training500": {"reads_per_second": 0.0}}
    for name in ("first.svg", "second.svg"):
        save(draw(figures, caption="a run"), tmp_path / name)
    text = (tmp_path / "first.svg").read_text()
    assert text == (tmp_path / "second.svg").read_text()
    for part in ("2 (goal 1)", "0 (goal 1)", "a storm of pod events", "a run"):
        assert part in text


def test_figures_without_a_goal_make_no_chart() -> None:
    with pytest.raises(ValueError, match="no figures"):
        draw({"storm": {"median_seconds": 1.0}}, caption="")
