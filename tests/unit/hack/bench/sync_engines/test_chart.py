"""The chart has a panel for each size and a line for each engine; a run names itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hack import svg_file
from hack.bench import run_record
from hack.bench.sync_engines import __main__ as command
from hack.bench.sync_engines import chart, suite


def figures(engine: str, receivers: int, **more: Any) -> dict[str, Any]:
    return {
        "engine": engine,
        "receivers": receivers,
        "senders": 1,
        "bytes": 64 << 20,
        "gbps_per_receiver": 1.0,
        "tcp_gbps_per_receiver": 2.0,
        "ratio_to_tcp": 0.5,
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
    svg_file.save(figure, tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    assert "commit abc" in text
    assert "kimi" not in text


def test_no_chart_without_figures() -> None:
    with pytest.raises(ValueError, match="no figures"):
        chart.draw([figures("kimi", 1, error="it broke")], caption="")


OPTIONS = ["--engines", "gloo", "--receivers", "1", "2", "--sizes", "1Mi"]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a run, whose figures are invented."""
    monkeypatch.setattr(run_record, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "run", lambda case, _: (figures(case.engine, case.receivers), {}))
    assert command.main(OPTIONS) == 0
    (found,) = tmp_path.glob("sync-*.jsonl")
    return found


def test_each_run_writes_a_file_of_its_own_that_names_commit_machine_date_load_and_versions(
    results: Path,
) -> None:
    first, *cases, last = map(json.loads, results.read_text().splitlines())
    assert {"commit", "began", "machine", "load_average"} <= set(first["run"])
    assert first["run"]["settings"] == OPTIONS
    assert {"python", "rollcall", "gloo"} <= set(first["run"]["versions"])
    assert [case["receivers"] for case in cases] == [1, 2]
    assert set(last["end"]) == {"ended", "load_average_at_end"}
    assert results.with_suffix(".svg").exists()


def test_what_the_docs_show_is_made_of_a_runs_file(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    monkeypatch.setattr(command, "MEASUREMENTS", docs)
    assert command.main(["--publish", str(results)]) == 0
    shown = json.loads((docs / "sync.json").read_text())
    assert (shown["run"], shown["cases"]) == command.read(results)
    assert {"commit", "ended", "versions"} <= set(shown["run"])
    table, named = capsys.readouterr().out.split("\n\n")[-2:]
    assert "| 64 | gloo | 1.00, 0.50 | 1.00, 0.50 |" in table
    for text in (named, (docs / "sync.svg").read_text()):
        assert shown["run"]["commit"][:8] in text
        assert "at the end" in text


def test_an_unfinished_run_is_not_shown(results: Path) -> None:
    *lines, _ = results.read_text().splitlines()
    results.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="did not end"):
        command.main(["--publish", str(results)])


def test_a_failed_case_and_one_that_was_not_measured_have_no_figures_in_the_table() -> None:
    cases = [figures("gloo", 1), figures("gloo", 2), figures("kimi", 1, error="it broke")]
    assert chart.table(cases).splitlines()[2:] == [
        "| 64 | gloo | 1.00, 0.50 | 1.00, 0.50 |",
        "| 64 | kimi | failed |  |",
    ]
