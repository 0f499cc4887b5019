"""Measures all weight-sync engines that can run on this machine, and draws the chart.

    python -m hack.bench.sync_engines --rounds 5
    python -m hack.bench.sync_engines --draw results/sync-....jsonl --chart sync.svg

Each run measures again and writes to a file of its own in results/: the first line names commit,
machine, date and load, each other line has the figures of one case.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.bench.run_record import caption, new_result, run_record
from hack.bench.sync_engines import chart
from rollcall_runtime.bench import suite
from rollcall_runtime.bench.cli import add_case_arguments, bench_case, positive, size
from rollcall_runtime.bench.host import own_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and draw; 1 if a case failed."""
    options = _parser().parse_args(arguments)
    if options.draw is not None:
        _draw(options.draw, options.chart or options.draw.with_suffix(".svg"))
        return 0
    run = run_record(settings=sys.argv[1:] if arguments is None else list(arguments))
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
    _draw(path, options.chart or path.with_suffix(".svg"))
    return 1 if failed else 0


def _draw(results: Path, image: Path) -> None:
    run, cases = read(results)
    chart.save(chart.draw(cases, caption=caption(run)), image)
    sys.stdout.write(f"{results}\n{image}\n")


def read(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record of the run, and the figures of its cases."""
    first, *cases = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return first["run"], cases


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--chart", type=Path, metavar="FILE.svg", help="default: beside the results"
    )
    parser.add_argument(
        "--draw", type=Path, metavar="FILE.jsonl", help="draw these results, measure nothing"
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
