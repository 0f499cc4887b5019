"""The page docs/measurements.md, made of the stored runs: `--write`, `--check`, `--store FILE`.

`--store` adds the runs of a file in results/ to docs/measurements/runs and writes the page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hack.docs.stored_runs import RUNS, bench_name, read, stored, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hack.docs.stored_runs import Bench, Figure, Run, Value

PAGE = RUNS.parents[1] / "measurements.md"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Weight sync": ("sync", "checks", "shards", "killed-receiver"),
    "Recovery": ("recovery", "soak"),
    "Training": ("local-jobs", "training-waits", "own-trainer", "verl-updates", "algorithms"),
    "Language models": ("vllm-updates", "language-model", "demo-llm"),
    "The front": ("front",),
    "Under attack": ("attacks", "liar", "liar-throughput"),
    "Operator": ("operator-load",),
}
_COLUMNS = ("figure", "goal", "value", "ratio", "commit", "date", "load")
_HEAD = """\
# Measurements

Made of the runs in `docs/measurements/runs` by `python -m hack.docs.measurements --write`; do not
edit. The last stored run of each figure is shown. {goals}

- **goal**: what the project aims at; empty where no goal was set. A goal that was not reached is
  marked **missed**.
- **value**: where several numbers stand, the median, then the least and the most, or the worst.
- **ratio**: the value divided by what stands beside the ratio, measured in the same run.
- **commit, date, load**: of the run, with the machine's load average from its start to its end.
  "With changes": the tree had changes that were not committed. "By": the figure was in the docs
  that day, and the day of the run was not recorded.

The machines are shared virtual machines without an accelerator. Their speed changes by a factor of
two within a day, so compare ratios rather than times. Nothing here was run on a GPU or an Ascend
device.

A new run enters in two steps:

```sh
make bench-operator                                                # prints the file that it wrote
python -m hack.docs.measurements --store results/operator-load-....jsonl
```

A figure in a bench's file names its value by the path of keys in the line of JSON that the bench
prints. `make bench-recovery` prints that line; keep it in a file and add `--bench recovery`. After
`make bench-sync` publish the run (`python -m hack.bench.sync_engines --publish FILE`), and store
`docs/measurements/sync.json`. The runs of `make attacks`, `make demo-llm` and of one transport are
entered by hand. A run whose values were taken from somewhere else names that as its `source`.

[History](measurements/history/index.md) says how figures were measured, what was tried, and why
goals are missed. It has the figures of benches that are no longer in the tree, too.
"""


def page() -> str:
    """The whole page. ValueError when a file of runs is wrong, or in no group."""
    benches = {path.stem: read(path) for path in sorted(RUNS.glob("*.json"))}
    grouped = {name for names in GROUPS.values() for name in names}
    if grouped != benches.keys():
        names = ", ".join(sorted(grouped ^ benches.keys()))
        raise ValueError(f"{RUNS} and GROUPS of {__name__} differ in: {names}")
    text = _HEAD.format(goals=_goals(benches))
    for group, members in GROUPS.items():
        text += f"\n## {group}\n" + "".join(_section(benches[name]) for name in members)
    return text


def _goals(benches: Mapping[str, Bench]) -> str:
    verdicts = [
        figure.missed(run)
        for bench in benches.values()
        for figure in bench.figures
        if (run := bench.newest(figure)) is not None
    ]
    found = [missed for missed in verdicts if missed is not None]
    return f"Goals that are missed: {sum(found)} of {len(found)}."


def _section(bench: Bench) -> str:
    lines = [f"\n### {bench.title}\n", f"{bench.measures} Command: `{bench.command}`.\n"]
    lines += [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += _rows(bench)
    shown = [run for figure in bench.figures if (run := bench.newest(figure)) is not None]
    machines = dict.fromkeys(run.machine or "not recorded" for run in shown)
    if machines:
        lines.append(f"\nMachine: {'; '.join(machines)}.")
    if bench.history:
        lines.append(f"[History](measurements/history/{bench.history}.md).")
    lines += [f"\n![{shows}](measurements/{file})" for file, shows in bench.charts.items()]
    return "\n".join(lines) + "\n"


def _rows(bench: Bench) -> Iterator[str]:
    for figure in bench.figures:
        run = bench.newest(figure)
        if run is None:
            cells = [figure.name, _goal(figure), "no run stored", "", "", "", ""]
        else:
            about = (run.commit, run.date and run.date.partition("T")[0], run.load)
            missed = ": **missed**" if figure.missed(run) else ""
            cells = [figure.name, _goal(figure) + missed, *_found(figure, run)]
            cells += [word or "not recorded" for word in about]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _goal(figure: Figure) -> str:
    bound = figure.at_most if figure.at_most is not None else figure.at_least
    if bound is None:
        return ""
    if isinstance(bound, bool):
        return _number(bound)
    unit = figure.unit if figure.goal_of == "value" else ""
    words = "at most" if figure.at_most is not None else "at least"
    kind = "ratio " if figure.goal_of == "ratio" and figure.value is not None else ""
    return f"{kind}{words} {_quantity(bound, unit)}"


def _found(figure: Figure, run: Run) -> tuple[str, str]:
    """The cells of the value and the ratio."""
    value = "" if figure.value is None else _quantity(run.values[figure.value], figure.unit)
    if figure.ratio is None:
        return value, ""
    to = f" to {figure.to}" if figure.to else ""
    return value, _quantity(run.values[figure.ratio], "") + to


def _quantity(value: Value, unit: str) -> str:
    after = f" {unit}" if unit else ""
    if not isinstance(value, tuple):
        return _number(value) + after
    median, *ends = map(_number, value)
    if len(ends) == 1:
        return f"{median}{after}, worst {ends[0]}{after}"
    return f"{median} ({' to '.join(ends)}){after}"


def _number(value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def main() -> int:
    """Writes or checks the page, or stores runs; returns 1 if that is not possible."""
    options = argparse.ArgumentParser(description=__doc__)
    how = options.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="write the page")
    how.add_argument("--check", action="store_true", help="fail if the page would change")
    how.add_argument("--store", type=Path, metavar="FILE", help="what a bench wrote into results/")
    options.add_argument("--bench", help="of FILE; by default its name says it")
    given = options.parse_args()
    try:
        if given.store is not None:
            _store(given.store, given.bench or bench_name(given.store))
        text = page()
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not given.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(
            f"{PAGE.name} is out of date: run python -m hack.docs.measurements --write",
            file=sys.stderr,
        )
        return 1
    return 0


def _store(results: Path, name: str) -> None:
    path = RUNS / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(path.stem for path in RUNS.glob("*.json")))
        raise ValueError(f"--bench: there is no bench {name}; there are {known}")
    write(path, stored(read(path), results))


if __name__ == "__main__":
    sys.exit(main())
