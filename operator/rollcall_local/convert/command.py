"""`rollcall convert`: writes the RLJob of a job of another trainer."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcall_local.errors import LocalError

_EXIT_OK, _EXIT_INCOMPLETE, _EXIT_REFUSED = 0, 1, 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns 1 if the RLJob lacks something, 64 if there is none."""
    options = parser().parse_args(arguments)
    try:
        return _convert(options)
    except (LocalError, OSError, UnicodeDecodeError) as error:
        print(f"rollcall convert: {error}", file=sys.stderr)
        return _EXIT_REFUSED


def parser() -> argparse.ArgumentParser:
    """The command with its options."""
    command = argparse.ArgumentParser(
        prog="rollcall convert",
        description="Writes the RLJob of a job of verl. Comments say which setting of verl each "
        "field replaces; standard error says what was not carried over, and what to do.",
    )
    command.add_argument("trainer", choices=["verl"], help="whose job it is")
    command.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        help="verl's configuration in YAML, or a script that ends in .sh and calls its program",
    )
    command.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="as verl's command line has them"
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it")
    command.add_argument("--name", default="", help="of the job (default: verl's experiment_name)")
    return command


def _convert(options: argparse.Namespace) -> int:
    from rollcall_local.convert.job import convert  # noqa: PLC0415 - not for --help
    from rollcall_local.convert.manifest import mistakes, written  # noqa: PLC0415
    from rollcall_local.convert.source import read_settings  # noqa: PLC0415

    file: Path = options.config
    given = read_settings(str(file), file.read_text(encoding="utf-8"), options.overrides)
    converted = convert(given, options.name)
    text = written(converted.body)
    if options.output is None:
        print(text, end="")
    else:
        with options.output.open("x", encoding="utf-8") as out:
            out.write(text)
    for line in converted.ending.lines():
        print(line, file=sys.stderr)
    wrong = mistakes(converted.body)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return _EXIT_INCOMPLETE if wrong else _EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
