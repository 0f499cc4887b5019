"""The throughput of all engines as a table of Markdown, for docs/measurements.md."""

from collections.abc import Iterable, Mapping
from typing import Any


def table(cases: Iterable[Mapping[str, Any]]) -> str:
    """A row for each size and engine, a column for each number of receivers.

    A cell has GB/s to each receiver, and their ratio to the TCP star of the same case.
    """
    cells = {(c["bytes"], c["engine"], c["receivers"]): _cell(c) for c in cases}
    receivers = sorted({count for _, _, count in cells})
    lines = [
        "| MiB | engine | "
        + " | ".join(f"{count} receiver" + "s" * (count > 1) for count in receivers)
        + " |",
        "|---" * (2 + len(receivers)) + "|",
    ]
    for size, engine in sorted({(size, engine) for size, engine, _ in cells}):
        row = " | ".join(cells.get((size, engine, count), "") for count in receivers)
        lines.append(f"| {size / 2**20:g} | {engine} | {row} |")
    return "\n".join(lines)


def _cell(case: Mapping[str, Any]) -> str:
    if "error" in case:
        return "failed"
    return f"{case['gbps_per_receiver']:.2f}, {case['ratio_to_tcp']:.2f}"
