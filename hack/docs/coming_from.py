"""The tables of docs/coming-from, made from the names of other trainers: `--write` or `--check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rollcall_local.other_names import OTHER_TRAINERS, OtherTrainer

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"
_TABLES = {
    "trl": ("trl", "sft"),
    "verl": ("verl",),
    "prime-rl": ("prime-rl",),
    "openrlhf": ("openrlhf",),
}
_BEGIN, _END = "<!-- Table of `{}`: python -m hack.docs.coming_from --write -->", "<!-- End. -->"


def table(other: OtherTrainer) -> str:
    """A row for each field, in the order of the names."""
    rows = (
        f"| `{path}` | {name.replace('|', chr(92) + '|')} |" for path, name in other.names.items()
    )
    return "\n".join([f"| here | {other.title} |", "|---|---|", *rows])


def page(name: str, text: str) -> str:
    """The page with its tables as the names say; ValueError if it lacks a mark."""
    for trainer in _TABLES[name]:
        begin = _BEGIN.format(trainer)
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(_END)
        if not (found and ended):
            raise ValueError(f"{name}.md: has no line {begin!r} that {_END!r} follows; add both")
        text = f"{before}{begin}\n\n{table(OTHER_TRAINERS[trainer])}\n\n{_END}{after}"
    return text


def main() -> int:
    """Writes or checks the pages; returns 1 if one is not as the names say."""
    options = argparse.ArgumentParser(description=__doc__)
    how = options.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="write the pages")
    how.add_argument("--check", action="store_true", help="fail if a page would change")
    write, wrong = options.parse_args().write, 0
    for name in _TABLES:
        file = PAGES / f"{name}.md"
        text = file.read_text(encoding="utf-8")
        if text == (made := page(name, text)):
            continue
        if write:
            file.write_text(made, encoding="utf-8")
            continue
        wrong = 1
        again = "run python -m hack.docs.coming_from --write"
        print(f"{file.name} is out of date: {again}", file=sys.stderr)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
