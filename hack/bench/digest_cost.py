"""What digests cost: sync throughput with them, divided by the throughput without.

    python -m hack.bench.digest_cost [--engines gloo mooncake] [--receivers 2] [--mebibytes 512]

Two groups of the same members, each in processes of its own, take turns: one compares digests, and
in the other one a digest is a constant. Medians are reported; the last line is JSON.
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hack.bench.run_record import finish, run_record
from rollcall_protocol.wire.weight_manifest import DIGEST_CHARACTERS, WeightManifest
from rollcall_runtime.bench.member import GroupMember, fork_members, version
from rollcall_runtime.bench.member_processes import MemberProcess, MemberProcesses, done, join
from rollcall_runtime.sync.digests import DigestBuilder
from rollcall_runtime.sync.engine import Role

GROUP = "job/default"
TIMEOUT = 60.0
HASHING = DigestBuilder.update, DigestBuilder.digest
CONSTANT = "0" * DIGEST_CHARACTERS


class HashingMember(GroupMember):
    """A member that can be kept from hashing."""

    def hash(self, on: bool) -> None:
        """Whether digests are computed from now on, or all are CONSTANT."""
        update, digest = HASHING if on else (lambda *_: None, lambda _: CONSTANT)
        setattr(DigestBuilder, "update", update)  # noqa: B010 - mypy forbids to assign a method
        setattr(DigestBuilder, "digest", digest)  # noqa: B010

    def take(self, manifest: WeightManifest) -> None:
        """Receive a version, and forget it."""
        with self._stage.staging(version(1), manifest, timeout=1) as buffer:
            self._sessions[GROUP].receive(buffer, manifest, timeout=TIMEOUT)
        self._stage.discard()


def hashing_nursery() -> None:
    """Fork such members."""
    fork_members(HashingMember)


def seconds_of(members: list[MemberProcess], manifest: WeightManifest, *, on: bool) -> float:
    """Send once; seconds from the first member's start to the last one's end."""
    sender, *receivers = members
    for member in members:
        member.do("hash", on=on)
    if not on:
        manifest = replace(manifest, digests=(CONSTANT,) * len(manifest.digests))
    futures = [receiver.start("take", manifest=manifest) for receiver in receivers]
    futures.append(sender.start("publish", group=GROUP, timeout=TIMEOUT))
    replies = [done(future) for future in futures]
    return max(reply.ended for reply in replies) - min(reply.began for reply in replies)


def measure(engine: str, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Medians of both, and of the ratios of neighbouring rounds."""
    start = "hack.bench.digest_cost:hashing_nursery"
    with MemberProcesses(folder, engine=engine, start=start) as processes:
        roles = [Role.SENDER, *[Role.RECEIVER] * arguments.receivers]
        members = [processes.open(role) for role in roles]
        manifest = members[0].do(
            "snapshot", seed=1, megabytes=arguments.mebibytes, bucket_bytes=32 << 20
        )
        join(members, group=GROUP)
        rounds = [
            (seconds_of(members, manifest, on=True), seconds_of(members, manifest, on=False))
            for _ in range(arguments.rounds + 1)
        ][1:]  # the first is warm-up
    with_, without = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "seconds_with": round(with_, 4),
        "seconds_without": round(without, 4),
        "throughput_ratio": round(statistics.median(off / on for on, off in rounds), 3),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description="What digests cost.")
    parser.add_argument("--engines", nargs="+", default=["gloo", "mooncake"])
    parser.add_argument("--receivers", type=int, default=2)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    record, found = run_record(vars(arguments)), {}
    for engine in arguments.engines:
        with tempfile.TemporaryDirectory() as folder:
            found[engine] = measure(engine, arguments, Path(folder))
        print(f"{engine}: {found[engine]}", file=sys.stderr)
    finish("digest-cost", record, {"figures": found})


if __name__ == "__main__":
    main()
