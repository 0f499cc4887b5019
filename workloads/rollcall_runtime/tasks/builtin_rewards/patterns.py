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
