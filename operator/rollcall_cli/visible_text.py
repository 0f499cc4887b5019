"""Text of a model as people may see it."""

from __future__ import annotations


def visible(text: str) -> str:
    """With escapes in the place of what is not printable, and a sign before the end of a line.

    Not printable are control characters, which a terminal obeys, and those that turn the direction
    of the text around them or have no width.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\n":
        return "⏎\n"
    return character.encode("unicode_escape").decode()
