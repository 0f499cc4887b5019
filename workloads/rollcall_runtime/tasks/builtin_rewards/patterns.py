"""Regular expressions of a job's settings."""

import re


def compiled(pattern: str, name: str) -> re.Pattern[str]:
    """The pattern; ValueError names the setting if it is none.

    A pattern that backtracks for ever ends with its process, at spec.reward.timeoutSeconds.
    """
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"{name} {pattern!r} is no regular expression: {error}") from error


def extractor(pattern: str, name: str) -> re.Pattern[str]:
    """A pattern for `last_group`; ValueError names the setting if it is none."""
    found = compiled(pattern, name)
    if found.groups < 1:
        raise ValueError(f"{name} {pattern!r} has no group ( ), which would be compared")
    return found


def last_group(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group of the last match in `text`; None without a match."""
    found = None
    for match in pattern.finditer(text):
        found = match.group(1)
    return found
