"""`rollcall-sync`: lists the weight-sync engines, and why one cannot be used on this machine."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rollcall_protocol import __version__
from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.worker.command_output import own_output

_COLUMNS = ("name", "kind", "devices", "available", "version", "reason")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; the result goes to standard output, everything else to standard error."""
    options = _parser().parse_args(arguments)
    with own_output() as output:
        try:
            from rollcall_runtime.sync.registry import engines  # noqa: PLC0415 - imports torch

            rows = [{name: asdict(found)[name] for name in _COLUMNS} for found in engines()]
        except (OSError, ValueError, RuntimeError) as error:
            sys.stderr.write(f"rollcall-sync: {error}\n")
            return ExitCode.FAILED
        output.write((json.dumps(rows) if options.json else _table(rows)) + "\n")
    return ExitCode.OK


def _table(rows: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return ",".join(value) or "?"
        return {None: "-", True: "yes", False: "no"}.get(value, str(value))

    lines = [[name.upper() for name in _COLUMNS]]
    lines += [[cell(row[name]) for name in _COLUMNS] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("rollcall-sync", description="Lists weight-sync engines.")
    parser.add_argument("--version", action="version", version=f"rollcall {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    engines = commands.add_parser(
        "engines", help="list the engines, and why an engine cannot run here"
    )
    engines.add_argument("--json", action="store_true", help="print a JSON array")
    return parser
