"""Figures of many loads in one file, and the chart of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from rollcall_runtime.bench import chart, suite
from rollcall_runtime.bench.throughput import Load


def figures(engine: str, receivers: int, **more: Any) -> dict[str, Any]:
    return {
        "engine": engine,
        "receivers": receivers,
        "senders": 1,
        "bytes": 1 << 20,
        "rounds": 1,
        "gbps_per_receiver": 1.0,
        "tcp_gbps_per_receiver": 2.0,
    } | more


def load(engine: str, receivers: int) -> Load:
    return Load(engine=engine, receivers=receivers, nbytes=1 << 20, bucket_bytes=1 << 20, rounds=1)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Engines that were run; `broken` fails."""
    names: list[str] = []

    def run(load: Load, folder: Path) -> tuple[dict[str, Any], Any]:
        names.append(load.engine)
        if load.engine == "broken":
            raise RuntimeError("it broke")
        return figures(load.engine, load.receivers), {}

    monkeypatch.setattr(suite, "run", run)
    return names


@pytest.mark.usefixtures("ran")
def test_figures_are_kept_and_those_measured_anew_replaced(tmp_path: Path) -> None:
    data = tmp_path / "new" / "sync.json"
    suite.run_all([load("gloo", 1), load("gloo", 2)], data)
    old = json.loads(data.read_text())
    old["cases"][0]["gbps_per_receiver"] = old["cases"][1]["gbps_per_receiver"] = 9.0
    data.write_text(json.dumps(old))
    suite.run_all([load("gloo", 2), load("nixl", 1)], data)
    found = [(c["engine"], c["receivers"], c["gbps_per_receiver"]) for c in suite.read(data)]
    assert found == [("gloo", 1, 9.0), ("gloo", 2, 1.0), ("nixl", 1, 1.0)]


def test_a_load_that_fails_does_not_end_the_others(tmp_path: Path, ran: list[str]) -> None:
    data = tmp_path / "sync.json"
    assert suite.run_all([load("broken", 1), load("gloo", 1)], data) == 1
    assert ran == ["broken", "gloo"]
    assert suite.read(data)[0]["error"] == "it broke"


def test_a_load_that_does_not_fit_into_memory_is_not_tried(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "available_memory", lambda: 1 << 20)
    assert suite.run_all([load("gloo", 1)], tmp_path / "sync.json") == 1
    assert not ran


def test_settings_may_name_a_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Load] = []

    def run(load: Load, folder: Path, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        seen.append(load)
        return {}, {}

    monkeypatch.setattr(suite, "_run", run)
    asked = replace(load("gloo", 1), config={"url": "file://{folder}/weights", "threads": 2})
    suite.run(asked, tmp_path)
    assert seen[0].config == {"url": f"file://{tmp_path}/weights", "threads": 2}


def test_the_chart_has_a_line_for_each_engine_in_a_panel_for_each_size() -> None:
    cases = [
        figures(engine, receivers, bytes=nbytes)
        for engine in ("gloo", "nixl")
        for receivers in (1, 2, 4)
        for nbytes in (64 << 20, 512 << 20)
    ]
    cases.append(figures("kimi", 1, error="it broke"))
    drawn = ET.fromstring(chart.draw(cases))  # noqa: S314 - our own words
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"gloo", "nixl", "TCP star", "64 MiB of weights", "512 MiB of weights"} <= set(texts)
    assert "kimi" not in texts
    lines = list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2 * (2 + 1)
    assert {len((line.get("points") or "").split()) for line in lines} == {3}


def test_no_chart_without_figures() -> None:
    with pytest.raises(ValueError, match="no figures"):
        chart.draw([figures("kimi", 1, error="it broke")])
