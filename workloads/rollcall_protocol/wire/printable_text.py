"""Texts of others as people may see them: a terminal obeys control characters."""


def one_line(text: str) -> str:
    """`text` with a space for each character that is not printable, the ends of lines included.

    Not printable are control characters (C0, C1), what turns the direction of the text around it,
    what has no width, and halves of surrogate pairs.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def printable_lines(text: str) -> str:
    """As `one_line`, but ends of lines stay."""
    return "\n".join(map(one_line, text.split("\n")))
