"""A run that a bench wrote is stored with its commit, date, load and the figures of its bench."""

import json
from pathlib import Path
from typing import Any

import pytest

from hack.bench.operator_load.chart import GOALS as OPERATOR_GOALS
from hack.bench.recovery.chart import GOALS as RECOVERY_GOALS
from hack.docs.stored_runs import RUNS, Bench, Figure, Run, at, bench_name, read, stored, write

RECORD = {
    "commit": "0123456789abcdef",
    "uncommitted_changes": True,
    "began": "2026-11-27T09:22:01+00:00",
    "machine": {"processor": "EPYC", "cores": 2, "memory_gib": 23.5, "kernel": "6"},
    "load_average": 1.4,
    "settings": {"rollouts": "tiny", "seed": 1},
    "ended": "2026-11-27T09:40:58+00:00",
    "load_average_at_end": 5.4,
}
FIGURES = (
    Figure(name="time", value="jobs.seconds", unit="s", ratio="jobs.ratio", to="a bare client"),
    Figure(name="pause", value="pause_ms", when={"rollouts": "tiny"}),
)


def bench(*runs: Run, figures: tuple[Figure, ...] = FIGURES) -> Bench:
    return Bench(title="B", measures="It.", command="make b", figures=figures, runs=runs)


def results(tmp_path: Path, *documents: Any) -> Path:
    """A file as a bench writes it, with a line that is no JSON before its figures."""
    path = tmp_path / "b-20261127-092201-01234567.jsonl"
    path.write_text("\n".join(["starting", *map(json.dumps, documents)]) + "\n")
    return path


def test_a_run_of_a_bench_is_stored_with_its_record_and_its_benchs_figures(tmp_path: Path) -> None:
    line = {"run": RECORD, "jobs": {"seconds": 7.5, "ratio": 2.0}, "pause_ms": [3, 1, 2], "no": 1}
    (run,) = stored(bench(), results(tmp_path, line)).runs
    assert run == Run(
        commit="01234567 with changes",
        date="2026-11-27T09:22:01+00:00",
        load="1.4 to 5.4",
        machine="EPYC, 2 cores, 23.5 GiB",
        settings={"rollouts": "tiny"},
        values={"jobs.seconds": 7.5, "jobs.ratio": 2.0, "pause_ms": (2, 1, 3)},
    )


def test_runs_that_gave_one_result_together_are_named_together(tmp_path: Path) -> None:
    last = RECORD | {"commit": "f" * 16, "load_average": 0.5, "uncommitted_changes": False}
    line = {"runs": [RECORD, last], "pause_ms": 4}
    (run,) = stored(bench(), results(tmp_path, line)).runs
    assert (run.commit, run.load) == ("01234567 to ffffffff with changes", "0.5 to 5.4")


def test_a_commit_that_is_not_known_is_not_recorded(tmp_path: Path) -> None:
    line = {"run": RECORD | {"commit": "unknown"}, "pause_ms": 4}
    assert stored(bench(), results(tmp_path, line)).runs[0].commit is None


def test_a_figure_is_that_of_the_last_run_that_has_it_with_its_settings(tmp_path: Path) -> None:
    tiny = Figure(name="pause", value="pause_ms", when={"rollouts": "tiny"})
    vllm = Figure(name="pause on vLLM", value="pause_ms", when={"rollouts": "vllm"})
    ratio = Figure(name="ratio", value="pause_ms", ratio="ratio")
    lines = [
        {"run": RECORD, "pause_ms": 4},
        {"run": RECORD, "pause_ms": 5},
        {"run": RECORD | {"settings": {"rollouts": "vllm"}}, "pause_ms": 9},
    ]
    found = stored(bench(figures=(tiny, vllm, ratio)), results(tmp_path, *lines))
    newest = {figure.name: found.newest(figure) for figure in (tiny, vllm, ratio)}
    assert {name: run and run.values["pause_ms"] for name, run in newest.items()} == {
        "pause": 5,
        "pause on vLLM": 9,
        "ratio": None,
    }


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([{"pause_ms": 4}], 'no line has a "run"'),
        ([{"run": RECORD, "other": 4}], "none of the figures jobs.ratio, jobs.seconds, pause_ms"),
    ],
)
def test_a_file_without_a_run_or_its_figures_is_refused(
    tmp_path: Path, documents: list[Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        stored(bench(), results(tmp_path, *documents))


def test_a_run_is_stored_once(tmp_path: Path) -> None:
    path = results(tmp_path, {"run": RECORD, "pause_ms": 4})
    with pytest.raises(ValueError, match="stored already"):
        stored(stored(bench(), path), path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1.5),
        ("a.none", None),
        ("a", None),
        ("flag", True),
        ("text", None),
        ("many", (2, 1, 9)),
        ("many.0", 9),
        ("many.length", 3),
        ("empty.length", 0),
        ("empty", None),
        ("spread", (2.0, 1.0, 3.0)),
        ("worst", (2.0, 5.0)),
        ("cases.engine=gloo.receivers=2.gbps", 0.5),
        ("cases.engine=gloo.gbps", (0.75, 0.5, 1.0)),
        ("cases.engine=ray.gbps", None),
    ],
)
def test_a_path_leads_to_a_value(path: str, value: object) -> None:
    document = {
        "a": {"b": 1.5},
        "flag": True,
        "text": "words",
        "many": [9, 1, 2],
        "empty": [],
        "spread": {"median": 2.0, "min": 1.0, "max": 3.0},
        "worst": {"n": 3, "median": 2.0, "worst": 5.0},
        "cases": [
            {"engine": "gloo", "receivers": 1, "gbps": 1.0},
            {"engine": "gloo", "receivers": 2, "gbps": 0.5},
        ],
    }
    assert at(document, path) == value


@pytest.mark.parametrize(
    ("goal", "value", "missed"),
    [
        ({"at_most": 1.0}, 1.0, False),
        ({"at_most": 1.0}, (1.1, 0.9, 2.0), True),
        ({"at_least": 0.9}, 0.9, False),
        ({"at_least": 0.9}, 0.89, True),
        ({"at_least": True}, False, True),
        ({}, 5.0, None),
    ],
)
def test_a_goal_is_missed_beyond_its_bound(
    goal: dict[str, float], value: float | tuple[float, float, float], missed: bool | None
) -> None:
    figure = Figure.model_validate({"name": "f", "value": "v", **goal})
    run = Run(commit=None, date=None, load=None, machine=None, values={"v": value})
    assert figure.missed(run) is missed


def test_a_goal_of_the_ratio_is_held_against_the_ratio() -> None:
    figure = Figure(name="f", value="v", ratio="r", at_most=2.0, goal_of="ratio")
    run = Run(commit=None, date=None, load=None, machine=None, values={"v": 9.0, "r": 1.9})
    assert figure.missed(run) is False


def test_a_figure_with_a_goal_of_nothing_or_a_field_of_another_name_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "b.json"
    write(path, bench())
    text = path.read_text()
    path.write_text(text.replace('"unit"', '"units"'))
    with pytest.raises(ValueError, match=r"b\.json(.|\n)*units"):
        read(path)
    path.write_text(text.replace('"value": "pause_ms"', '"goal_of": "ratio"'))
    with pytest.raises(ValueError, match="pause: goal_of is value or ratio"):
        read(path)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    line = {"run": RECORD, "jobs": {"seconds": 7.5, "ratio": 2.0}, "pause_ms": [3, 1, 2]}
    whole = stored(bench(), results(tmp_path, line))
    write(tmp_path / "b.json", whole)
    assert read(tmp_path / "b.json") == whole


def test_a_results_file_names_its_bench() -> None:
    assert bench_name(Path("results/liar-throughput-20261127-092201-01234567.jsonl")) == (
        "liar-throughput"
    )
    assert bench_name(Path("results/vllm_updates.json")) == "vllm-updates"


def test_the_goals_are_those_of_the_charts() -> None:
    operator = {
        f"{scenario}.{name}": goal for (scenario, name), (goal, _) in OPERATOR_GOALS.items()
    }
    recovery = {
        f"events.{event}.{name}": goal
        for event, goals in RECOVERY_GOALS.items()
        for name, goal in zip(("median", "p99"), goals, strict=True)
    }
    for name, goals in (("operator-load", operator), ("recovery", recovery)):
        found = {
            getattr(figure, figure.goal_of): figure.at_most
            for figure in read(RUNS / f"{name}.json").figures
            if figure.at_most is not None
        }
        assert found == goals
