"""Deltas against whole versions through the same engine: seconds and bytes.

    python -m hack.bench.delta_transfer [--mebibytes 512] [--share 0.02] [--receivers 1 4 8]

Each receiver is a process of its own; whole versions and deltas take turns, and medians are
reported. A stage lasts from the start of sending until the last receiver has verified all buckets.
Outside of it are `encode`, and `prepare`: a receiver's copy of its base, made before the delta
comes; in a `cold_delta` the copy is part of the stage. `cpu` seconds are all members' together,
which a busy machine changes least. The last line is JSON.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hack.bench.run_record import finish, run_record
from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.bench.member import GroupMember, fork_members, version
from rollcall_runtime.bench.member_processes import MemberProcess, MemberProcesses, done, join
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.memory.buffers import GrowingBufferPool, HostBuffer
from rollcall_runtime.sync.weights.delta import EncodedDelta, decode, encode

GROUP = "job/default"
TIMEOUT = 60.0
_CHUNK = 16 << 20  # bytes of random data made at a time


class DeltaMember(GroupMember):
    """A member that serves a base, and as the sender what was made of it."""

    def __init__(self, member: MemberId) -> None:
        super().__init__(member)
        self._pool = GrowingBufferPool(limit=2)
        self._encoded: EncodedDelta | None = None

    def serve(self, size: int, bucket_bytes: int, config: DeltaConfig) -> None:
        """Make the base, the same on all members, and serve it as version 1."""
        self._config = config
        generator = np.random.default_rng(1)
        base = HostBuffer(size)
        for start in range(0, size, _CHUNK):
            length = len(base.memory[start : start + _CHUNK])
            base.memory[start : start + length] = generator.bytes(length)
        sums = bucket_digests(base.memory, bucket_bytes)
        self._whole = WeightManifest((), size, bucket_bytes, sums)
        with self._stage.staging(version(1), self._whole, timeout=0) as buffer:
            buffer.memory[:] = base.memory
        with self._stage.committing(version(1)):
            self._base = base

    def change(self, share: float, most: int) -> WeightManifest:
        """The sender's new version: `share` of all bytes differ, by 1 to `most` (modulo 256)."""
        generator = np.random.default_rng(2)
        size, bucket_bytes = self._whole.total_bytes, self._whole.bucket_bytes
        self._new = HostBuffer(size)
        self._new.memory[:] = self._base.memory
        flat = np.frombuffer(self._new.memory, np.uint8)
        for start in range(0, size, _CHUNK):
            length = len(flat[start : start + _CHUNK])
            picked = start + generator.choice(length, int(length * share), replace=False)
            flat[picked] += generator.integers(1, most + 1, len(picked), dtype=np.uint8)
        sums = bucket_digests(self._new.memory, bucket_bytes)
        self._whole = WeightManifest((), size, bucket_bytes, sums)
        return self._whole

    def encode(self) -> tuple[WeightManifest | None, float]:
        """Make the delta; None when it is too long. And seconds of CPU."""
        used = time.process_time()
        self._encoded = None  # lets its buffer go
        self._encoded = encode(
            self._base.memory, self._new.memory, self._whole, config=self._config, pool=self._pool
        )
        used = time.process_time() - used
        return self._encoded.manifest if self._encoded else None, used

    def send(self, *, delta: bool) -> float:
        """The sender's half; seconds of CPU."""
        used = time.process_time()
        session = self._sessions[GROUP]
        if delta and self._encoded is not None:
            session.publish(self._encoded.buffer, self._encoded.manifest, timeout=TIMEOUT)
        else:
            session.publish(self._new, self._whole, timeout=TIMEOUT)
        return time.process_time() - used

    def take(
        self, *, whole: WeightManifest, short: WeightManifest | None
    ) -> tuple[float, float, float]:
        """Stage version 2, and forget it: seconds of the transfer, of decoding, and of CPU."""
        began, used = time.monotonic(), time.process_time()
        session = self._sessions[GROUP]
        if short is None:
            with self._stage.staging(version(2), whole, timeout=0) as buffer:
                session.receive(buffer, whole, timeout=TIMEOUT)
            ended = received = time.monotonic()
        else:
            hold, encoded = self._pool.take(short.total_bytes, timeout=0)
            patching = self._stage.patching(version(2), whole, base=version(1), timeout=0)
            with hold, patching as (buffer, base):
                session.receive(encoded, short, timeout=TIMEOUT)
                received = time.monotonic()
                memory = base.buffer.memory if base else None
                decode(
                    encoded.memory, short, whole, buffer.memory, base=memory, config=self._config
                )
            ended = time.monotonic()
        self._stage.discard()
        return received - began, ended - received, time.process_time() - used

    def prepare(self) -> float:
        """Copy the base to where the delta goes; seconds of CPU."""
        used = time.process_time()
        self._stage.prepare()
        return time.process_time() - used


def delta_nursery() -> None:
    """Fork such members."""
    fork_members(DeltaMember)


def stage(
    members: list[MemberProcess], whole: WeightManifest, short: WeightManifest | None
) -> dict[str, float]:
    """Send once: seconds until the last receiver is done, and its transfer's and decoding's."""
    sender, *receivers = members
    futures = [receiver.start("take", whole=whole, short=short) for receiver in receivers]
    futures.append(sender.start("send", delta=short is not None))
    replies = [done(future) for future in futures]
    ended = max(reply.ended for reply in replies)
    *taken, sent = [reply.result for reply in replies]
    return {
        "stage": ended - min(reply.began for reply in replies),
        "transfer": max(transfer for transfer, _, _ in taken),
        "decode": max(decoding for _, decoding, _ in taken),
        "cpu": sent + sum(used for _, _, used in taken),
    }


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def measure(arguments: argparse.Namespace, receivers: int, folder: Path) -> dict[str, Any]:
    """All figures with so many receivers."""
    size, bucket = arguments.mebibytes << 20, arguments.bucket_mebibytes << 20
    config = DeltaConfig(threads=arguments.threads)
    with MemberProcesses(
        folder, engine=arguments.engine, start="hack.bench.delta_transfer:delta_nursery"
    ) as processes:
        members = [
            processes.open(Role.RECEIVER if n else Role.SENDER) for n in range(receivers + 1)
        ]
        call_all(members, "serve", size=size, bucket_bytes=bucket, config=config)
        whole = members[0].do("change", share=arguments.share, most=arguments.by)
        join(members, group=GROUP)
        rows: list[dict[str, dict[str, float]]] = []
        for number in range(arguments.rounds + 1):
            row = {}
            reply = done(members[0].start("encode"))
            short, used = reply.result
            if short is None:
                raise SystemExit("too much has changed for a delta")
            row["encode"] = {"seconds": reply.ended - reply.began, "cpu": used}
            row["whole"] = stage(members, whole, None)
            row["prepare"] = call_all(members[1:], "prepare")
            row["delta"] = stage(members, whole, short)
            row["cold_delta"] = stage(members, whole, short)
            print(f"{receivers} receivers, round {number}: {row}", file=sys.stderr)
            if number:  # the first is warm-up
                rows.append(row)
    return {
        "receivers": receivers,
        "wire_share": round(short.total_bytes / whole.total_bytes, 5),
        **{name: median([row[name] for row in rows]) for name in rows[0]},
        "times_faster": {
            "transfer": ratio(rows, ("delta", "transfer")),
            "stage": ratio(rows, ("delta", "stage")),
            "stage_cold": ratio(rows, ("cold_delta", "stage")),
            "stage_and_encode": ratio(rows, ("delta", "stage"), ("encode", "seconds")),
            "stage_encode_and_prepare": ratio(
                rows, ("delta", "stage"), ("encode", "seconds"), ("prepare", "seconds")
            ),
        },
        "times_less_cpu": {
            "stage": ratio(rows, ("delta", "cpu"), of="cpu"),
            "stage_cold": ratio(rows, ("cold_delta", "cpu"), of="cpu"),
            "stage_encode_and_prepare": ratio(
                rows, ("delta", "cpu"), ("encode", "cpu"), ("prepare", "cpu"), of="cpu"
            ),
        },
    }


def call_all(members: list[MemberProcess], name: str, **kwargs: Any) -> dict[str, float]:
    """Send all a command at once: seconds until the last is done, and of CPU if they return it."""
    replies = [done(future) for future in [member.start(name, **kwargs) for member in members]]
    return {
        "seconds": max(reply.ended for reply in replies) - min(reply.began for reply in replies),
        "cpu": sum(reply.result or 0 for reply in replies),
    }


def ratio(
    rows: list[dict[str, dict[str, float]]], *parts: tuple[str, str], of: str = "stage"
) -> float:
    """How many times more of that whole versions take than these parts together, by median."""
    return round(
        statistics.median(
            row["whole"][of] / sum(row[name][what] for name, what in parts) for row in rows
        ),
        2,
    )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="Deltas against whole versions.")
    parser.add_argument("--engine", default="gloo")
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--bucket-mebibytes", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.02, help="of bytes that change")
    parser.add_argument("--by", type=int, default=255, help="bytes change by 1 to this")
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=DeltaConfig().threads)
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    results = []
    for receivers in arguments.receivers:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(arguments, receivers, Path(folder)))
    finish("delta-transfer", run, {"results": results})


if __name__ == "__main__":
    main()
