"""Whether the version of a trainer's framework is one whose interface an adapter knows."""

import re


def is_known(found: str, first: tuple[int, ...], end: tuple[int, ...]) -> bool:
    """Whether `found`, such as 1.16.2 or 1.17.0rc1, is `first` or later and before `end`."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    return first <= numbers < end


def shown(first: tuple[int, ...], end: tuple[int, ...]) -> str:
    """For people: from `first` up to, and without, `end`."""
    numbers = (".".join(map(str, version)) for version in (first, end))
    return " up to, and without, ".join(numbers)
