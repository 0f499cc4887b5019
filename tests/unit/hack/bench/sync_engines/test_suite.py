"""Many cases are measured one after the other, whatever becomes of one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hack.bench.sync_engines import suite
from hack.bench.sync_engines.throughput import BenchCase


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


def case(engine: str, receivers: int) -> BenchCase:
    return BenchCase(
        engine=engine, receivers=receivers, nbytes=1 << 20, bucket_bytes=1 << 20, rounds=1
    )


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Engines that were run; `broken` fails."""
    names: list[str] = []

    def run(case: BenchCase, folder: Path) -> tuple[dict[str, Any], Any]:
        names.append(case.engine)
        if case.engine == "broken":
            raise RuntimeError("it broke")
        return figures(case.engine, case.receivers), {}

    monkeypatch.setattr(suite, "run", run)
    return names


def test_a_case_that_fails_does_not_end_the_others(ran: list[str]) -> None:
    broken, good = suite.measure_all([case("broken", 1), case("gloo", 1)])
    assert ran == ["broken", "gloo"]
    assert broken["error"] == "it broke"
    assert good == figures("gloo", 1)


def test_a_case_that_does_not_fit_into_memory_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "available_memory", lambda: 1 << 20)
    monkeypatch.setattr(suite, "_run", None)
    (found,) = suite.measure_all([case("gloo", 1)])
    assert "MiB of memory, and 1 MiB are free; choose a smaller --size" in found["error"]


def test_settings_may_name_a_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BenchCase] = []

    def run(case: BenchCase, folder: Path, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        seen.append(case)
        return {}, {}

    monkeypatch.setattr(suite, "_run", run)
    asked = replace(case("gloo", 1), config={"url": "file://{folder}/weights", "threads": 2})
    suite.run(asked, tmp_path)
    assert seen[0].config == {"url": f"file://{tmp_path}/weights", "threads": 2}
