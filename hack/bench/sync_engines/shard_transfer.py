"""Measures receivers that need a part of the weights, beside the same ones reading everything.

Rounds of both kinds alternate, in two sessions of the same members, so that both see the same load.
"""

import json
import statistics
from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from typing import Any

from hack.bench.sync_engines.throughput import BenchGroup
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.weights.shards import RowShard
from tests.unit.rollcall_runtime.sync.member import MemberReply
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcess, abort, done, join

_GROUP = "job/shards"
_WARM_ROUNDS = 2


@dataclass(slots=True)
class ShardTimings:
    """Seconds of each round, and bytes that each receiver read for its part."""

    whole: list[float] = field(default_factory=list)
    part: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    correct: bool = True


def measure(party: BenchGroup, count: int) -> ShardTimings:
    """Have each receiver take one of `count` parts, and everything."""
    load, found = party.load, ShardTimings()
    held = list(zip(party.receivers, shards(len(party.receivers), count), strict=True))
    for receiver, shard in held:
        receiver.seat = _of_shard(receiver.seat, shard)
        receiver.do("hold_part", manifest=party.manifest, shard=shard)
    join(party.members, group=_GROUP, senders=load.senders)
    for number in range(_WARM_ROUNDS + load.rounds):
        party.manifest = party.take()[1]
        _all([(receiver, {}) for receiver in party.receivers], "spoil")
        whole = party.send()
        seconds, nbytes = _part(party, held)
        if number >= _WARM_ROUNDS:
            found.whole.append(whole)
            found.part.append(seconds)
            found.nbytes = nbytes
    found.correct = party.verified() and _verified(party, held)
    for group in ("job/default", _GROUP):
        abort(party.members, group=group)
    return found


def report(found: ShardTimings, *, count: int, nbytes: int) -> dict[str, Any]:
    """The figures: the most that a receiver read, and medians."""
    whole, part = statistics.median(found.whole), statistics.median(found.part)
    return {
        "shards": count,
        "bytes_per_receiver": max(found.nbytes),
        "bytes_ratio": round(max(found.nbytes) / nbytes, 4),
        "whole_seconds": round(whole, 5),
        "shard_seconds": round(part, 5),
        "shard_time_ratio": round(part / whole, 3),
    }


def details(found: ShardTimings) -> dict[str, Any]:
    """The values behind the figures."""
    return {
        "whole_round_seconds": [round(value, 5) for value in found.whole],
        "shard_round_seconds": [round(value, 5) for value in found.part],
        "shard_bytes": found.nbytes,
    }


def shards(receivers: int, count: int) -> list[RowShard]:
    """What each receiver takes: the parts in turn."""
    return [RowShard(number % count, count) for number in range(receivers)]


def _of_shard(seat: Seat, shard: RowShard) -> Seat:
    descriptor = json.loads(b64decode(seat.descriptor)) | {"shard": shard.key}
    return replace(seat, descriptor=b64encode(json.dumps(descriptor).encode()).decode())


def _part(party: BenchGroup, held: list[tuple[MemberProcess, RowShard]]) -> tuple[float, list[int]]:
    kwargs = {"group": _GROUP, "manifest": party.manifest, "timeout": party.load.timeout}
    receiving = [receiver.start("take_part", shard=shard, **kwargs) for receiver, shard in held]
    sending = [sender.start("send", **kwargs) for sender in party.senders]
    began = min(done(future).began for future in sending)
    replies = [done(future) for future in receiving]
    return max(reply.ended for reply in replies) - began, [reply.result for reply in replies]


def _verified(party: BenchGroup, held: list[tuple[MemberProcess, RowShard]]) -> bool:
    """Whether each receiver holds the senders' rows, tensor by tensor."""
    for receiver, shard in held:
        sent = _all([(sender, {"shard": shard}) for sender in party.senders], "sent_rows")
        wanted = [digest for reply in sent for digest in reply.result]
        if receiver.do("taken_rows", manifest=party.manifest, shard=shard) != wanted:
            return False
    return True


def _all(calls: list[tuple[MemberProcess, dict[str, Any]]], command: str) -> list[MemberReply]:
    started = [member.start(command, **kwargs) for member, kwargs in calls]
    return [done(future) for future in started]
