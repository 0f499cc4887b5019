"""The chart shows a panel for each algorithm and a line for each seed."""

from pathlib import Path

import pytest

from hack.bench.algorithms.chart import draw
from hack.svg_file import save

CURVES = {"grpo": [[0.1, 0.5, 0.99], [0.1, 0.4, 0.98]], "ppo": [[0.1, 0.2, 0.3]]}


def test_each_run_is_a_line(tmp_path: Path) -> None:
    figure = draw(CURVES, goal=0.95, caption="a commit")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["grpo", "ppo"]
    goal = 1
    assert [len(axes.lines) - goal for axes in panels] == [2, 1]
    save(figure, tmp_path / "chart.svg")
    assert "a commit" in (tmp_path / "chart.svg").read_text()


def test_without_runs_there_is_no_chart() -> None:
    with pytest.raises(ValueError, match="no curves"):
        draw({"grpo": []}, goal=0.95, caption="")
