"""The chart has a panel for each size and a line for each engine; a run names itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hack.bench import run_record
from hack.bench.sync_engines import __main__ as command
from hack.bench.sync_engines import chart
from rollcall_runtime.bench import suite


def figures(engine: str, receivers: int, **more: Any) -> dict[str, Any]:
    return {
        "engine": engine,
        "receivers": receivers,
        "senders": 1,
        "bytes": 64 << 20,
        "gbps_per_receiver": 1.0,
        "tcp_gbps_per_receiver": 2.0,
    } | more


def test_the_chart_has_a_line_for_each_engine_in_a_panel_for_each_size(tmp_path: Path) -> None:
    cases = [
        figures(engine, receivers, bytes=nbytes)
        for engine in ("gloo", "nixl")
        for receivers in (1, 2, 4)
        for nbytes in (64 << 20, 512 << 20)
    ]
    cases.append(figures("kimi", 1, error="it broke"))
    figure = chart.draw(cases, caption="commit abc")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "64 MiB of weights",
        "512 MiB of weights",
    ]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["TCP star", "gloo", "nixl"]
        assert {len(np.asarray(line.get_xdata())) for line in axes.lines} == {3}
    chart.save(figure, tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    assert "commit abc" in text
    assert "kimi" not in text


def test_no_chart_without_figures() -> None:
    with pytest.raises(ValueError, match="no figures"):
        chart.draw([figures("kimi", 1, error="it broke")], caption="")


def test_each_run_writes_a_file_of_its_own_that_names_commit_machine_date_and_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "run", lambda case, _: (figures(case.engine, case.receivers), {}))
    options = ["--engines", "gloo", "--receivers", "1", "2", "--sizes", "1Mi"]
    assert command.main(options) == 0
    (results,) = tmp_path.glob("sync-*.jsonl")
    first, *cases = map(json.loads, results.read_text().splitlines())
    assert {"commit", "began", "machine", "load_average"} <= set(first["run"])
    assert first["run"]["settings"] == options
    assert [case["receivers"] for case in cases] == [1, 2]
    assert results.with_suffix(".svg").exists()
