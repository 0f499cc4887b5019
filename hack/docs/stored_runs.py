"""The runs of benches that docs/measurements/runs keeps: a JSON file for each bench.

A file has the bench's figures, with their goals, and the runs that gave values. A figure names its
value by the path of the keys in the line that the bench prints, such as `jobs500x2.seconds`.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUNS = Path(__file__).parents[2] / "docs" / "measurements" / "runs"
Value = bool | int | float | tuple[float, float] | tuple[float, float, float]
"""Two numbers are the median and the worst; three are the median, the least and the most."""
_FIGURE = re.compile(r"\{\n   \"name\".*?\n  \}", re.DOTALL)  # as the file is indented
_EXTREMES = (("min", "max"), ("least", "most"), ("worst",), ("max",))


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Part):
    """A row of a bench's table."""

    name: str
    value: str | None = None
    unit: str = ""
    ratio: str | None = None
    to: str = ""
    """What the ratio is to."""
    at_most: bool | float | None = None
    at_least: bool | float | None = None
    goal_of: str = "value"
    when: dict[str, Any] = Field(default_factory=dict)
    """Settings that a run must have been made with to have this figure."""

    @model_validator(mode="after")
    def _goal_has_a_figure(self) -> Figure:
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(f"{self.name}: give at_most or at_least, not both")
        if getattr(self, self.goal_of, None) is None or self.goal_of not in {"value", "ratio"}:
            raise ValueError(f"{self.name}: goal_of is value or ratio, and the figure must have it")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """What a run must have to give this figure."""
        return tuple(path for path in (self.value, self.ratio) if path is not None)

    def missed(self, run: Run) -> bool | None:
        """Whether the run's value is beyond the goal; None without a goal."""
        found = run.values[self.paths[0] if self.goal_of == "value" else str(self.ratio)]
        number = found[0] if isinstance(found, tuple) else found
        if self.at_most is not None:
            return number > self.at_most
        return None if self.at_least is None else number < self.at_least


class Run(_Part):
    """What one run found, and when and where it was made. None is what was not recorded."""

    commit: str | None
    date: str | None
    load: str | None
    machine: str | None
    source: str = ""
    """Where the values were taken from; empty where the bench's own line was stored."""
    settings: dict[str, Any] = Field(default_factory=dict)
    values: dict[str, Value]

    def has(self, figure: Figure) -> bool:
        """Whether it gives this figure."""
        made = all(self.settings.get(key) == value for key, value in figure.when.items())
        return made and all(path in self.values for path in figure.paths)


class Bench(_Part):
    """A file of docs/measurements/runs."""

    title: str
    measures: str
    command: str
    history: str = ""
    """Page in docs/measurements/history, without its suffix."""
    charts: dict[str, str] = Field(default_factory=dict)
    """File in docs/measurements, and what it shows."""
    figures: tuple[Figure, ...]
    runs: tuple[Run, ...]

    def newest(self, figure: Figure) -> Run | None:
        """The last stored run that has this figure."""
        return next((run for run in reversed(self.runs) if run.has(figure)), None)


def read(path: Path) -> Bench:
    """ValueError, with the file and its fields, where it is not as it must be."""
    try:
        return Bench.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ValueError(f"{path}: {error}") from error


def write(path: Path, bench: Bench) -> None:
    """A line for each figure, and for each value of a run."""
    text = json.dumps(bench.model_dump(exclude_defaults=True), indent=1, ensure_ascii=False)
    text = re.sub(r"\[[-\d.e,\s]+\]", lambda numbers: _on_one_line(numbers[0]), text)
    text = _FIGURE.sub(lambda figure: _on_one_line(figure[0]), text)
    path.write_text(text + "\n", encoding="utf-8")


def _on_one_line(text: str) -> str:
    return re.sub(r"([\[{])\s+|\s+([\]}])|\s+", lambda found: found[1] or found[2] or " ", text)


def bench_name(results: Path) -> str:
    """Of a file in `results`, which is named by bench, time and commit."""
    return re.sub(r"-\d{8}-\d{6}.*", "", results.stem).replace("_", "-")


def stored(bench: Bench, results: Path) -> Bench:
    """The bench with the runs of a file that it wrote.

    ValueError when the file has no run, a run has none of the bench's figures, or is stored.
    """
    documents = _documents(results.read_text(encoding="utf-8"))
    runs = [_run(bench, document) for document in documents if {"run", "runs"} & document.keys()]
    if not runs:
        raise ValueError(f'{results}: no line has a "run"; store a file that a bench wrote')
    for run in runs:
        if not any(run.has(figure) for figure in bench.figures):
            paths = sorted({path for figure in bench.figures for path in figure.paths})
            raise ValueError(f"{results}: a run has none of the figures {', '.join(paths)}")
        if any(
            (run.commit, run.date, run.values) == (r.commit, r.date, r.values) for r in bench.runs
        ):
            raise ValueError(f"{results}: the run of {run.date} is stored already")
    return bench.model_copy(update={"runs": (*bench.runs, *runs)})


def _documents(text: str) -> list[dict[str, Any]]:
    """Of a file that is one JSON document, or has one in a line, beside other text."""
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [whole] if isinstance(whole, dict) else []


def _run(bench: Bench, document: Mapping[str, Any]) -> Run:
    """Of a line that a bench printed; several runs that gave one result are named together."""
    records = [document["run"]] if "run" in document else document["runs"]
    settings = records[-1].get("settings") or {}
    wanted = {key for figure in bench.figures for key in figure.when}
    found = {path: at(document, path) for figure in bench.figures for path in figure.paths}
    return Run(
        commit=_commit(records),
        date=records[0]["began"],
        load=_load(records),
        machine=_machine(records[-1]["machine"]),
        settings={key: settings[key] for key in wanted if key in settings},
        values={path: value for path, value in found.items() if value is not None},
    )


def at(document: Any, path: str) -> Value | None:
    """The value at a path of keys; None where there is none.

    Of a list, `key=value` keeps the items that have it, a number takes one item, `length` counts
    them, and another key takes the items' values.
    """
    for key in path.split("."):
        if isinstance(document, list):
            document = _of_items(document, key)
        elif isinstance(document, dict):
            document = document.get(key)
        else:
            return None
    if isinstance(document, list):
        many = (statistics.median(document), min(document), max(document)) if document else None
        return document[0] if len(document) == 1 else many
    if isinstance(document, dict):
        ends = next((ends for ends in _EXTREMES if set(ends) <= document.keys()), None)
        return None if ends is None else tuple(document[key] for key in ("median", *ends))
    return document if isinstance(document, (bool, int, float)) else None


def _of_items(items: Sequence[Any], key: str) -> Any:
    if key == "length":
        return len(items)
    if key.isdigit():
        return items[int(key)] if int(key) < len(items) else None
    name, equals, wanted = key.partition("=")
    having = [item for item in items if isinstance(item, dict) and name in item]
    if equals:
        return [item for item in having if str(item[name]) == wanted]
    return [item[name] for item in having]


def _commit(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The first and the last one's."""
    ends = [record["commit"][:8] for record in (records[0], records[-1])]
    if "unknown" in ends:
        return None
    changes = any(record["uncommitted_changes"] for record in records)
    return " to ".join(dict.fromkeys(ends)) + (" with changes" if changes else "")


def _load(records: Sequence[Mapping[str, Any]]) -> str:
    keys = ("load_average", "load_average_at_end")
    loads = [record[key] for record in records for key in keys if key in record]
    least, most = min(loads), max(loads)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _machine(machine: Mapping[str, Any]) -> str:
    return f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB"
