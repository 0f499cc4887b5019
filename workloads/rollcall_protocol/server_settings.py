"""What the settings of all inference servers have in common."""

import shlex
from collections.abc import Collection


def check_seconds(start: float, silent: float) -> None:
    """ValueError unless a server has time to start and to answer, and not for ever."""
    if not (0 < start <= 86_400 and 1 <= silent <= 3_600):
        raise ValueError("startSeconds must be at most 86400, silentSeconds from 1 to 3600")


def split_arguments(arguments: str, *, taken: Collection[str]) -> list[str]:
    """A user's arguments, one by one; ValueError for an unclosed quotation or a name in `taken`."""
    found = shlex.split(arguments)
    for argument in found:
        name = argument.partition("=")[0]
        if name in taken:
            raise ValueError(f"arguments must not have {name}, which Rollcall sets")
    return found
