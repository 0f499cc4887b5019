"""Text of others as people may see it."""

from __future__ import annotations

from typing import Any

LONGEST_LINE = 10_000  # characters


def visible(text: str) -> str:
    """With escapes in the place of what is not printable, and a sign before the end of a line.

    Not printable are control characters, which a terminal obeys, and those that turn the direction
    of the text around them or have no width.
    """
    return "".join(map(_visible, text))


def visible_lines(text: str) -> str:
    """As `visible`, but ends of lines and tabs stay as they are, and a long line is cut."""
    return "\n".join(map(_line, text.split("\n")))


def visible_values(value: Any) -> Any:
    """A JSON value with each of its texts as `visible_lines` gives it."""
    if isinstance(value, str):
        return visible_lines(value)
    if isinstance(value, dict):
        return {key: visible_values(each) for key, each in value.items()}
    return [visible_values(each) for each in value] if isinstance(value, list) else value


def _line(text: str) -> str:
    more = len(text) - LONGEST_LINE
    shown = "\t".join(visible(part) for part in text[:LONGEST_LINE].split("\t"))
    return f"{shown}... and {more} more characters" if more > 0 else shown


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\n":
        return "⏎\n"
    return character.encode("unicode_escape").decode()
