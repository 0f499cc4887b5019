"""What checks cost: the same engine with digests, with checksums and without any, in turn."""

import statistics
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hack.bench.sync_engines.throughput import BenchGroup


class Checks(StrEnum):
    """By what receivers know the bytes; NONE is for this comparison alone."""

    NONE = "none"
    CHECKSUMS = "checksums"
    DIGESTS = "digests"


@dataclass(slots=True)
class CheckTimings:
    """Seconds of each round: of the transfer, and at the sender before it."""

    transfer: dict[Checks, list[float]] = field(default_factory=lambda: {c: [] for c in Checks})
    sender: dict[Checks, list[float]] = field(default_factory=lambda: {c: [] for c in Checks})


def measure(party: BenchGroup) -> CheckTimings:
    """All rounds; each has every kind once. The first is not counted."""
    found = CheckTimings()
    try:
        for number in range(1 + party.load.rounds):
            for checks in Checks:
                for member in party.members:
                    member.do("check_by", checks=checks)
                taken, party.manifest = party.take()
                seconds = party.send()
                if number:
                    found.transfer[checks].append(seconds)
                    found.sender[checks].append(max(timings.digests for timings in taken))
    finally:
        party.close()
    return found


def report(found: CheckTimings, nbytes: int) -> dict[str, Any]:
    """Speeds as shares of that without checks, medians of the rounds' own ratios; and how many GB
    (1e9 bytes) a second the sender computes.
    """
    figures: dict[str, Any] = {}
    for checks in (Checks.CHECKSUMS, Checks.DIGESTS):
        pairs = zip(found.transfer[Checks.NONE], found.transfer[checks], strict=True)
        figures[f"{checks}_to_unchecked"] = round(statistics.median(n / c for n, c in pairs), 3)
        seconds = statistics.median(found.sender[checks])
        figures[f"{checks}_gbps_at_sender"] = round(nbytes / seconds / 1e9, 2)
    return figures
