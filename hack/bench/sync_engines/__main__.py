"""Measures all weight-sync engines that can run on this machine, and draws the chart.

    python -m hack.bench.sync_engines --rounds 5
    python -m hack.bench.sync_engines --draw results/sync-....jsonl --chart sync.svg
    python -m hack.bench.sync_engines --publish results/sync-....jsonl

Each run measures again and writes to a file of its own in results/: the first line names commit,
machine, date, load and the engines' versions, the last one the load at the end, each other line has
the figures of one case. `--publish` makes docs/measurements/sync.json and sync.svg of such a file,
and prints the table for docs/measurements.md.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack import svg_file
from hack.bench.run_record import ROOT, caption, new_result, run_end, run_record
from hack.bench.sync_engines import chart, suite
from hack.bench.sync_engines.one_engine import add_case_arguments, bench_case, positive, size
from rollcall_protocol import __version__
from rollcall_runtime.sync.registry import engines
from rollcall_runtime.worker.command_output import own_output

MEASUREMENTS = ROOT / "docs" / "measurements"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and draw; 1 if a case failed."""
    options = _parser().parse_args(arguments)
    if options.draw is not None:
        _draw(options.draw, options.chart or options.draw.with_suffix(".svg"))
        return 0
    if options.publish is not None:
        _publish(options.publish, MEASUREMENTS)
        return 0
    run = run_record(settings=sys.argv[1:] if arguments is None else list(arguments))
    run["versions"] = _versions()
    path = new_result("sync", run)
    with own_output() as output, path.open("w", encoding="utf-8") as results:
        results.write(json.dumps({"run": run}) + "\n")
        cases = [
            bench_case(options, engine=engine, receivers=receivers, nbytes=nbytes)
            for engine in (options.engines or suite.usable_engines())
            for nbytes in options.sizes
            for receivers in options.receivers
        ]
        failed = 0
        for number, figures in enumerate(suite.measure_all(cases), start=1):
            failed += "error" in figures
            results.write(json.dumps(figures) + "\n")
            results.flush()
            output.write(f"{number} of {len(cases)}: {json.dumps(figures)}\n")
            output.flush()
        results.write(json.dumps({"end": run_end()}) + "\n")
    _draw(path, options.chart or path.with_suffix(".svg"))
    return 1 if failed else 0


def _draw(results: Path, image: Path) -> None:
    run, cases = read(results)
    svg_file.save(chart.draw(cases, caption=caption(run)), image)
    sys.stdout.write(f"{results}\n{image}\n")


def _publish(results: Path, folder: Path) -> None:
    """Write sync.json and sync.svg, print the table. ValueError for a run that did not end."""
    run, cases = read(results)
    if "ended" not in run:
        raise ValueError(f"{results}: the run did not end; publish one that did")
    document = json.dumps({"run": run, "cases": cases}, indent=1) + "\n"
    (folder / "sync.json").write_text(document, encoding="utf-8")
    svg_file.save(chart.draw(cases, caption=caption(run)), folder / "sync.svg")
    sys.stdout.write(f"{chart.table(cases)}\n\n{caption(run)}\n")


def read(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record of the run, with its end if it came to one, and the figures of its cases."""
    first, *cases = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    end = cases.pop()["end"] if cases and "end" in cases[-1] else {}
    return first["run"] | end, cases


def _versions() -> dict[str, str]:
    """Of Python, Rollcall and each usable engine's library."""
    known = {engine.name: engine.version for engine in engines() if engine.available}
    return {
        "python": platform.python_version(),
        "rollcall": __version__,
        **{name: version for name, version in known.items() if version is not None},
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--chart", type=Path, metavar="FILE.svg", help="default: beside the results"
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FILE.jsonl", help="draw these results, measure nothing"
    )
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="FILE.jsonl",
        help="make what the docs show of these results",
    )
    parser.add_argument("--engines", nargs="+", metavar="E", help="default: all that can run here")
    parser.add_argument(
        "--receivers", type=positive, nargs="+", default=[1, 2, 4, 8, 16], metavar="N"
    )
    parser.add_argument(
        "--sizes", type=size, nargs="+", default=[size("64Mi"), size("512Mi")], metavar="S"
    )
    add_case_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
