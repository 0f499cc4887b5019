"""A delta against the whole version through the same engine: seconds and bytes.

    python -m tests.bench.bench_delta [--mebibytes 512] [--share 0.02] [--receivers 1 4]

Each receiver is a process of its own; whole and delta take turns, and medians are reported. The
last line is JSON. `encode` is not part of a stage's seconds: they begin when it is done.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rollcall_protocol.manifest import Manifest
from rollcall_runtime.bench.member import Member, nursery
from rollcall_runtime.bench.world import Remote, World, done, join
from rollcall_runtime.sync.buffers import HostBuffer
from rollcall_runtime.sync.delta import decode, encode
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.staging import checksums

GROUP = "job/default"
TIMEOUT = 60.0
_CHUNK = 16 << 20  # bytes of random data made at a time


class DeltaMember(Member):
    """A member that holds a base, and as the sender what was made of it."""

    def prepare(
        self, size: int, bucket_bytes: int, share: float | None
    ) -> tuple[Manifest, Manifest | None]:
        """Make the base; with a `share` of changed bytes the new version too."""
        generator = np.random.default_rng(1)
        self._base, self._new = HostBuffer(size), HostBuffer(size)
        self._new.memory[:] = bytes(size)  # touched once, as a pool's buffer has been
        for start in range(0, size, _CHUNK):
            length = len(self._base.memory[start : start + _CHUNK])
            self._base.memory[start : start + length] = generator.bytes(length)
        if share is None:
            return Manifest((), 0, bucket_bytes, ()), None  # the sender describes what comes
        self._new.memory[:] = self._base.memory
        flat = np.frombuffer(self._new.memory, np.uint8)
        for start in range(0, size, _CHUNK):
            length = len(flat[start : start + _CHUNK])
            picked = start + generator.choice(length, int(length * share), replace=False)
            flat[picked] += generator.integers(1, 256, len(picked), dtype=np.uint8)
        self._whole = Manifest((), size, bucket_bytes, checksums(self._new.memory, bucket_bytes))
        return self._whole, self.encode()

    def encode(self) -> Manifest | None:
        """Make the delta; None when it is too long."""
        made = encode(self._base.memory, self._new.memory, self._whole)
        if made is None:
            return None
        self._encoded, self._short = made
        return self._short

    def send(self, *, delta: bool) -> None:
        """The sender's half."""
        buffer = self._encoded if delta else self._new
        manifest = self._short if delta else self._whole
        self._sessions[GROUP].publish(buffer, manifest, timeout=TIMEOUT)

    def take(self, *, whole: Manifest, short: Manifest | None) -> tuple[float, float]:
        """Receive, and decode if it is a delta: seconds of both."""
        began = time.monotonic()
        encoded = HostBuffer(short.total_bytes) if short else self._new
        self._sessions[GROUP].receive(encoded, short or whole, timeout=TIMEOUT)
        received = time.monotonic()
        if short:
            decode(self._base.memory, encoded.memory, whole, self._new.memory)
        return received - began, time.monotonic() - received


def delta_nursery() -> None:
    """Fork such members."""
    nursery(DeltaMember)


def stage(members: list[Remote], whole: Manifest, short: Manifest | None) -> dict[str, float]:
    """Send once: seconds until the last receiver is done, and its transfer's and decoding's."""
    sender, *receivers = members
    futures = [receiver.start("take", whole=whole, short=short) for receiver in receivers]
    futures.append(sender.start("send", delta=short is not None))
    replies = [done(future) for future in futures]
    ended = max(reply.ended for reply in replies)
    halves = [reply.result for reply in replies[:-1]]
    return {
        "stage": ended - min(reply.began for reply in replies),
        "transfer": max(transfer for transfer, _ in halves),
        "decode": max(decoding for _, decoding in halves),
    }


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}


def measure(arguments: argparse.Namespace, receivers: int, folder: Path) -> dict[str, Any]:
    """All figures with so many receivers."""
    size, bucket = arguments.mebibytes << 20, arguments.bucket_mebibytes << 20
    with World(
        folder, engine=arguments.engine, start="tests.bench.bench_delta:delta_nursery"
    ) as world:
        members = [world.open(Role.RECEIVER if n else Role.SENDER) for n in range(receivers + 1)]
        making = [
            member.start(
                "prepare", size=size, bucket_bytes=bucket,
                share=None if number else arguments.share,
            )
            for number, member in enumerate(members)
        ]  # fmt: skip
        (whole, short), *_ = [done(future).result for future in making]
        if short is None:
            raise SystemExit("too much has changed for a delta")
        join(members, group=GROUP)
        wholes, deltas, encoding = [], [], []
        for number in range(arguments.rounds + 1):
            reply = done(members[0].start("encode"))
            results = stage(members, whole, None), stage(members, whole, short)
            print(f"{receivers} receivers, round {number}: {results}", file=sys.stderr)
            if number:  # the first is warm-up
                encoding.append({"seconds": reply.ended - reply.began})
                wholes.append(results[0])
                deltas.append(results[1])
    ratios = [a["stage"] / b["stage"] for a, b in zip(wholes, deltas, strict=True)]
    total = [
        a["stage"] / (b["stage"] + e["seconds"])
        for a, b, e in zip(wholes, deltas, encoding, strict=True)
    ]
    wire = [a["stage"] / b["transfer"] for a, b in zip(wholes, deltas, strict=True)]
    return {
        "receivers": receivers, "encode_seconds": median(encoding)["seconds"],
        "whole": median(wholes), "delta": median(deltas),
        "wire_share": round(short.total_bytes / whole.total_bytes, 5),
        "times_faster": {
            "transfer": round(statistics.median(wire), 2),
            "stage": round(statistics.median(ratios), 2),
            "stage_and_encode": round(statistics.median(total), 2),
        },
    }  # fmt: skip


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="Deltas against whole versions.")
    parser.add_argument("--engine", default="gloo")
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--bucket-mebibytes", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.02, help="of bytes that change")
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = []
    for receivers in arguments.receivers:
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(arguments, receivers, Path(folder)))
    print(json.dumps({"mebibytes": arguments.mebibytes, "share": arguments.share,
                      "engine": arguments.engine, "results": results}))  # fmt: skip


if __name__ == "__main__":
    main()
