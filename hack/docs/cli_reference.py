"""The page docs/cli.md, made from the commands' own parsers: `--write` or `--check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_cli import main as rollcall
from rollcall_local import check_command, init_command
from rollcall_local import commands as rollcall_local
from rollcall_local.convert import command as convert_command
from rollcall_operator import cli as rollcall_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
_HEAD = """\
# Commands

Every command and option, made from the programs by `python -m hack.docs.cli_reference --write`;
do not edit. [api.md](api.md#commands) says what the commands of `rollcall` are for. Called
`kubectl-rollcall` on the PATH, the same program is a plugin: `kubectl rollcall status JOB`.
"""


def page() -> str:
    """The whole page; the same parsers always give the same text."""
    programs = (
        rollcall.parser(),
        init_command.parser(),
        check_command.parser(),
        convert_command.parser(),
        rollcall_local.parser(),
        rollcall_operator.parser(),
    )
    return _HEAD + "".join(
        section
        for program in programs
        for section in _sections(program, 2, program.description or "")
    )


def _sections(parser: argparse.ArgumentParser, level: int, about: str = "") -> Iterator[str]:
    """A program, and then each of its commands."""
    shown = [action for action in parser._actions if "--help" not in action.option_strings]
    commands = [a for a in shown if isinstance(a, argparse._SubParsersAction)]
    rows = [_row(action) for action in shown if action not in commands]
    table = "\n".join(["| argument | what it is |", "|---|---|", *rows])
    yield f"\n{'#' * level} {parser.prog}\n\n{_sentence(about)}\n\n{table}\n"
    for action in commands:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from _sections(command, level + 1, helps[name])


def _row(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {_value(action)}"
    names = [f"`{name}{value}`" for name in action.option_strings] or [f"`{_value(action)}`"]
    about = (action.help or "").replace("%(default)s", str(action.default)).replace("|", "\\|")
    return f"| {', '.join(names)} | {about} |"


def _value(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(map(str, action.choices)).replace("|", "\\|")
    return str(action.metavar or action.dest).upper()


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def main() -> int:
    """Writes or checks the page; returns 1 if it is not as the parsers say."""
    options = argparse.ArgumentParser(description=__doc__)
    how = options.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="write the page")
    how.add_argument("--check", action="store_true", help="fail if the page would change")
    text = page()
    if options.parse_args().write:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(
            f"{PAGE.name} is out of date: run python -m hack.docs.cli_reference --write",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
