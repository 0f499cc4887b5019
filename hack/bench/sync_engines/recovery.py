"""Measures how long the survivors lack a version after a receiver was killed during its transfer.

A receiver is killed by SIGKILL in mid-transfer; the end of its stream is the signal; the others
abort, form a new session, and the same weights are sent again and committed.
"""

import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from hack.bench.sync_engines.throughput import GROUP, BenchCase, BenchGroup
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import Role
from tests.unit.rollcall_runtime.sync.member import MemberReply
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    settled,
)

_TRIES = 4  # for each kill that counts
_WARM_ROUNDS = 3
_SHORTEST = 0.02  # seconds of a transfer, beside which the moment of a kill is known well enough
_FIRST, _STEP = 0.2, 0.6 * 0.618  # where in a transfer victims die: spread over 0.2 to 0.8 of it


class TransferEndedError(Exception):
    """The victim had received everything before it died: the trial does not count."""


@dataclass(frozen=True, slots=True)
class RecoveryTimings:
    """Seconds of each step; `total` from the kill until all survivors have committed."""

    detect: float
    rebuild: float
    resend: float
    total: float


class KillTrials:
    """Senders and receivers, one more of which is killed in each round.

    `party` has one receiver less than the load, and has been measured: all its pages are warm.
    """

    def __init__(self, party: BenchGroup, processes: MemberProcesses) -> None:
        self._party, self._processes = party, processes
        self._number = 0
        for _ in range(_WARM_ROUNDS):  # the survivors' pages; victims are always new
            self._seconds = self._play_undisturbed()
        if self._seconds < _SHORTEST:
            raise RuntimeError(
                f"a transfer takes {self._seconds:.3f} s, too short to kill a member in the middle "
                "of it; use a larger --size"
            )

    def play(self, *, after: float, naive: bool = False) -> RecoveryTimings:
        """One death, after this part of the least time that a transfer took. `naive` survivors
        wait until the engine itself gives up.
        """
        victim = self._processes.open(Role.RECEIVER)
        join([*self._party.members, victim], senders=len(self._party.senders))
        self._number += 1
        doomed = victim.start("receive", **self._kwargs())
        sending = self._start()
        time.sleep(after * self._seconds)
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        victim.dead.wait(self._party.load.timeout)
        ended = doomed.done()
        if naive:
            for future in sending:
                future.result(self._party.load.timeout)
        detected = time.monotonic()
        abort(self._party.members)
        if ended:  # faster than the one that was timed: the next kill comes by its time
            received = done(doomed)
            self._seconds = min(self._seconds, received.ended - received.began)
            raise TransferEndedError
        join(self._party.members, senders=len(self._party.senders))
        rebuilt = time.monotonic()
        self._send_and_commit()
        committed = time.monotonic()
        abort(self._party.members)
        return RecoveryTimings(
            detect=detected - killed,
            rebuild=rebuilt - detected,
            resend=committed - rebuilt,
            total=committed - killed,
        )

    def rest(self) -> None:
        """Wait until nothing of earlier rounds is stuck."""
        for member in self._party.members:
            settled(member, "abandoned", 0, seconds=self._party.load.timeout)

    def _play_undisturbed(self) -> float:
        """Seconds of a transfer to the party and one receiver more, as new as a victim."""
        extra = self._processes.open(Role.RECEIVER)
        members = [*self._party.members, extra]
        join(members, senders=len(self._party.senders))
        self._number += 1
        receiving = extra.start("receive", **self._kwargs())
        self._send_and_commit()
        reply = done(receiving)
        abort(members)
        extra.close()
        return reply.ended - reply.began

    def _send_and_commit(self) -> None:
        for future in self._start():
            done(future, seconds=self._party.load.timeout)
        for future in [
            member.start("commit", number=self._number, check=False)
            for member in self._party.receivers
        ]:
            done(future)

    def _start(self) -> list[Future[MemberReply]]:
        receivers: list[MemberProcess] = self._party.receivers
        receiving = [receiver.start("receive", **self._kwargs()) for receiver in receivers]
        kwargs = {"group": GROUP, "manifest": self._manifest, "timeout": self._party.load.timeout}
        return [*receiving, *(sender.start("send", **kwargs) for sender in self._party.senders)]

    @property
    def _manifest(self) -> WeightManifest:
        return self._party.manifest

    def _kwargs(self) -> dict[str, Any]:
        return {
            "group": GROUP,
            "number": self._number,
            "manifest": self._manifest,
            "timeout": self._party.load.timeout,
        }


def kills(scene: KillTrials, *, count: int) -> list[RecoveryTimings]:
    """`count` kills that count, fewer if too many transfers end before their victim does."""
    found: list[RecoveryTimings] = []
    for after in islice(_moments(), _TRIES * count):
        if len(found) == count:
            break
        scene.rest()  # a kill in every blink would be another question
        try:
            found.append(scene.play(after=after))
        except TransferEndedError:
            continue
    return found


def naive_seconds(scene: KillTrials) -> float | None:
    """For comparison: seconds from a kill to the last commit when the survivors get no signal
    and wait for the engine's own time-out. None if no victim died in mid-transfer.
    """
    for after in islice(_moments(), _TRIES):
        scene.rest()
        try:
            return round(scene.play(after=after, naive=True).total, 4)
        except TransferEndedError:
            continue
    return None


def _moments() -> Iterator[float]:
    """Parts of a transfer, spread evenly however many are taken."""
    offset = 0.0
    while True:
        yield _FIRST + offset
        offset = (offset + _STEP) % 0.6


def report(found: list[RecoveryTimings]) -> dict[str, float]:
    """Median seconds of each step."""
    return {
        f"{step}_seconds": round(statistics.median(getattr(one, step) for one in found), 4)
        for step in ("detect", "rebuild", "resend")
    }


def details(found: list[RecoveryTimings]) -> dict[str, Any]:
    """What the medians were made of, and the worst: `total` is from the kill to the last commit."""
    totals = [one.total for one in found]
    return {
        "kills": len(found),
        "total_seconds": round(statistics.median(totals), 4),
        "worst_seconds": round(max(totals), 4),
        "each": [{step: round(value, 4) for step, value in asdict(one).items()} for one in found],
    }


def survivors(load: BenchCase) -> BenchCase:
    """The party that a scene needs to have the load's number of receivers with the victim."""
    if load.receivers < 2:
        raise ValueError("a kill needs at least two receivers: one dies and one survives")
    return replace(load, receivers=load.receivers - 1)
