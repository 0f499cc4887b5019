"""Measures how fast an engine moves weights, beside bare TCP and memcpy in the same run.

Each round takes a snapshot, sends it through the engine, sends the same bytes over a TCP star and
copies them, so that all three see the same load. Every member is a process on this machine, with an
address of its own on the loopback interface.
"""

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.bench.sync_engines.measured_member import FORK_SERVER, SnapshotTimings
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.sync.engine import Role
from tests.unit.rollcall_runtime.sync.member import MemberReply
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
)

GROUP = "job/default"
HOST, DEVICE = "host", "device"
_GB = 1e9
_WARM_ROUNDS = 2
_COPIES_AT_SENDER = 4  # tensors, two snapshots, the target of memcpy
_LATE = 10.0  # seconds after a transfer's timeout by which it must have ended
_HEADROOM = 256 << 20  # for the processes themselves, together


@dataclass(frozen=True, slots=True)
class BenchCase:
    """What to measure: `nbytes` of bf16 weights (even), cut into buckets of `bucket_bytes`.

    `config` is the engine's, as in an RLJob. `timeout` (seconds) bounds each transfer. `staging`
    is "host" or "device".
    """

    engine: str
    receivers: int
    nbytes: int
    bucket_bytes: int
    rounds: int
    senders: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    timeout: float = 90.0
    verbose: bool = False
    staging: str = HOST

    def start_processes(self, folder: Path) -> MemberProcesses:
        """Start the processes of this case's members."""
        return MemberProcesses(
            folder, engine=self.engine, config=self.config, start=FORK_SERVER, verbose=self.verbose
        )

    @property
    def memory(self) -> int:
        """Bytes that the members hold together, beside what the engine itself takes."""
        return self.nbytes * (_COPIES_AT_SENDER + self.receivers) + _HEADROOM


@dataclass(slots=True)
class RoundTimings:
    """Seconds of each round. `snapshot` is what the trainer waits for with a snapshot; `blocking`
    what it would wait for if it sent by itself: the same copy, the digests, and the send until
    the last receiver has verified all.
    """

    engine: list[float] = field(default_factory=list)
    star: list[float] = field(default_factory=list)
    memcpy: list[float] = field(default_factory=list)  # bytes per second
    snapshot: list[float] = field(default_factory=list)
    digests: list[float] = field(default_factory=list)
    blocking: list[float] = field(default_factory=list)


class BenchGroup:
    """The senders and receivers of one measurement, joined to one session."""

    def __init__(self, load: BenchCase, processes: MemberProcesses) -> None:
        self.load = load
        opened = processes.open_all([Role.SENDER] * load.senders + [Role.RECEIVER] * load.receivers)
        self.senders, self.receivers = opened[: load.senders], opened[load.senders :]
        if load.staging == DEVICE:
            _all(opened, "stage_on_device")
        for number, (sender, nbytes) in enumerate(
            zip(self.senders, _shares(load.nbytes, load.senders), strict=True)
        ):
            sender.do("hold_weights", seed=number, nbytes=nbytes, bucket_bytes=load.bucket_bytes)
        self.manifest = self.take()[1]
        for receiver in self.receivers:
            receiver.do("hold_target", nbytes=self.manifest.total_bytes)
        join(self.members, senders=load.senders)

    @property
    def members(self) -> list[MemberProcess]:
        """In the order of their seats."""
        return [*self.senders, *self.receivers]

    def take(self) -> tuple[list[SnapshotTimings], WeightManifest]:
        """A snapshot at every sender, and the manifest of all of them together."""
        taken: list[SnapshotTimings] = [
            reply.result for reply in _all(self.senders, "take_snapshot")
        ]
        parts = [part.manifest for part in taken]
        return taken, parts[0] if len(parts) == 1 else combine_manifests(parts)

    def send(self) -> float:
        """Seconds from the first sender's start until the last receiver has verified all."""
        kwargs = {"group": GROUP, "manifest": self.manifest, "timeout": self.load.timeout}
        return self._timed(
            lambda: [receiver.start("take", **kwargs) for receiver in self.receivers],
            lambda: [sender.start("send", **kwargs) for sender in self.senders],
        )

    def verified(self) -> bool:
        """Whether each receiver holds the senders' bytes, tensor by tensor."""
        sent = [digest for reply in _all(self.senders, "sent_digests") for digest in reply.result]
        taken = _all(self.receivers, "taken_digests", manifest=self.manifest)
        return all(reply.result == sent for reply in taken)

    def open_star(self) -> None:
        """Connect every receiver to every sender."""
        count = len(self.receivers)
        at = [
            (sender.address, sender.do("star_listen", address=sender.address, receivers=count))
            for sender in self.senders
        ]
        accepting = [sender.start("star_accept", receivers=count) for sender in self.senders]
        for receiver in self.receivers:  # one by one: each finds its part by the order of senders
            receiver.do("star_connect", senders=at)
        for future in accepting:
            done(future)

    def star(self) -> float:
        """What `send` measures, over bare sockets."""
        return self._timed(
            lambda: [r.start("star_receive", manifest=self.manifest) for r in self.receivers],
            lambda: [sender.start("star_send") for sender in self.senders],
        )

    def close(self) -> None:
        """End the session and the star."""
        _all(self.members, "star_close")
        abort(self.members)

    def _timed(
        self,
        receive: Callable[[], list[Future[MemberReply]]],
        send: Callable[[], list[Future[MemberReply]]],
    ) -> float:
        receiving = receive()
        seconds = self.load.timeout + _LATE
        began = min(done(future, seconds=seconds).began for future in send())
        return max(done(future, seconds=seconds).ended for future in receiving) - began


def measure(party: BenchGroup) -> tuple[RoundTimings, bool]:
    """All rounds, and whether every receiver had the right bytes after the last one."""
    load, found = party.load, RoundTimings()
    party.open_star()
    try:
        for number in range(_WARM_ROUNDS + load.rounds):
            taken, party.manifest = party.take()
            _all(party.receivers, "spoil")
            seconds, star = party.send(), 0.0
            correct = number + 1 < _WARM_ROUNDS + load.rounds or party.verified()
            star = party.star()
            if number < _WARM_ROUNDS:
                continue  # pages are faulted in, and libraries connect
            snapshot, digests = max(t.copy for t in taken), max(t.digests for t in taken)
            found.engine.append(seconds)
            found.star.append(star)
            found.memcpy.append(party.senders[0].do("memcpy"))
            found.snapshot.append(snapshot)
            found.digests.append(digests)
            found.blocking.append(max(t.copy + t.digests for t in taken) + seconds)
    finally:
        party.close()
    return found, correct


def report(load: BenchCase, found: RoundTimings, *, correct: bool) -> dict[str, Any]:
    """The figures: medians; speeds in GB (1e9 bytes) a second."""
    engine, star = statistics.median(found.engine), statistics.median(found.star)
    snapshot, blocking = statistics.median(found.snapshot), statistics.median(found.blocking)
    return {
        "engine": load.engine,
        "receivers": load.receivers,
        "senders": load.senders,
        "bytes": load.nbytes,
        "rounds": load.rounds,
        "gbps_per_receiver": round(load.nbytes / engine / _GB, 3),
        "tcp_gbps_per_receiver": round(load.nbytes / star / _GB, 3),
        "ratio_to_tcp": round(star / engine, 3),
        "memcpy_gbps": round(statistics.median(found.memcpy) / _GB, 3),
        "snapshot_seconds": round(snapshot, 5),
        "blocking_seconds": round(blocking, 5),
        "visible_ratio": round(blocking / snapshot, 2),
        "verified": correct,
        **({"staging": load.staging} if load.staging != HOST else {}),
    }


def details(found: RoundTimings) -> dict[str, Any]:
    """The values behind the medians."""
    return {
        "send_seconds": _rounded(found.engine),
        "tcp_seconds": _rounded(found.star),
        "snapshot_seconds": _rounded(found.snapshot),
        "digest_seconds": _rounded(found.digests),
        "blocking_seconds": _rounded(found.blocking),
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]


def _shares(nbytes: int, senders: int) -> list[int]:
    """What each sender holds: even numbers, because elements have two bytes."""
    share = nbytes // senders // 2 * 2
    return [nbytes - share * (senders - 1), *[share] * (senders - 1)]


def _all(members: Sequence[MemberProcess], command: str, **kwargs: Any) -> list[MemberReply]:
    return [done(future) for future in [member.start(command, **kwargs) for member in members]]
