"""The chart of rewards shows a panel for each task and a line for each run."""

from typing import Any

import numpy as np
import pytest

from hack.bench.language_model.chart import draw


def run(task: str, seed: int, *, sync: bool = True) -> dict[str, Any]:
    looks = [[1.0, 0, 1, 32, 0.1], [9.0, 1, 2, 64, 0.4]]
    return {"task": task, "seed": seed, "sync": sync, "looks": looks}


def test_each_run_is_a_line_in_its_tasks_panel() -> None:
    runs = [run("first-letter", 1), run("first-letter", 1, sync=False), run("chain-sum", 2)]
    letters, sums = draw(runs).axes
    assert letters.get_title(loc="left") == "first-letter"
    assert [line.get_label() for line in letters.lines] == ["seed 1", "seed 1, no weight sync"]
    (line,) = sums.lines
    assert np.asarray(line.get_xydata()).tolist() == [[0, 0.1], [1, 0.4]]


def test_without_runs_there_is_no_chart() -> None:
    with pytest.raises(ValueError, match="no runs"):
        draw([])
