"""Bandwidth of a weight-sync engine against a raw TCP star over the same buffers, in one run.

The engine's time includes the checksums that receivers verify; the star's is bare. Each receiver
is a process on loopback. The last line is JSON.
Run it with `PYTHONPATH=workloads python -m tests.bench.bench_sync`.
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rollcall_protocol.ids import MemberId
from rollcall_protocol.manifest import Manifest
from rollcall_runtime.bench import member as members
from rollcall_runtime.bench.world import Remote, World, abort, done, join
from rollcall_runtime.sync.buffers import HostBuffer

MIB = 1 << 20
GROUP = "job/default"
SECONDS = 120.0


class BenchMember(members.Member):
    """A member that also sends and receives over plain sockets."""

    def __init__(self, member: MemberId) -> None:
        super().__init__(member)
        self._connections: list[socket.socket] = []
        self._target = HostBuffer(0)

    def tcp_accept(self, address: str, port: int, count: int) -> None:
        """Wait for `count` receivers."""
        with socket.create_server((address, port), backlog=count) as server:
            self._connections = [server.accept()[0] for _ in range(count)]

    def tcp_connect(self, address: str, port: int, nbytes: int) -> None:
        """Connect to the sender; it may need a moment to listen."""
        deadline = time.monotonic() + 10
        while True:
            try:
                self._connections = [socket.create_connection((address, port), timeout=10)]
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._target = HostBuffer(nbytes)
        self._target.memory[:] = bytes(nbytes)  # no page faults while it counts

    def tcp_send(self) -> None:
        """Send the snapshot to every receiver at once."""
        assert self._snapshot is not None
        memory = self._snapshot.buffer.memory
        threads = [
            threading.Thread(target=connection.sendall, args=(memory,))
            for connection in self._connections
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def tcp_receive(self) -> None:
        """Fill the buffer."""
        view = self._target.memory
        while view:
            view = view[self._connections[0].recv_into(view) :]

    def tcp_close(self) -> None:
        """Hang up."""
        for connection in self._connections:
            connection.close()

    def memcpy(self) -> float:
        """Bytes per second of a copy of the snapshot."""
        assert self._snapshot is not None
        source = self._snapshot.buffer
        target = HostBuffer(source.nbytes)
        target.memory[:] = source.memory
        began = time.perf_counter()
        target.memory[:] = source.memory
        return source.nbytes / (time.perf_counter() - began)


NURSERY = "tests.bench.bench_sync:nursery"


def nursery() -> None:
    """Where bench members come from."""
    members.nursery(BenchMember)


def engine_round(group: list[Remote], manifest: Manifest, number: int) -> float:
    """Seconds from the sender's start to the last receiver's verified end."""
    sender, *receivers = group
    kwargs = {"group": GROUP, "number": number, "manifest": manifest, "timeout": SECONDS}
    futures = [receiver.start("receive", **kwargs) for receiver in receivers]
    began = done(sender.start("publish", group=GROUP, timeout=SECONDS)).began
    return max(done(future).ended for future in futures) - began


def tcp_round(group: list[Remote]) -> float:
    """The same for the star."""
    sender, *receivers = group
    futures = [receiver.start("tcp_receive") for receiver in receivers]
    began = done(sender.start("tcp_send")).began
    return max(done(future).ended for future in futures) - began


def verified(group: list[Remote], number: int) -> bool:
    """Whether each receiver holds the sender's bytes, tensor by tensor."""
    sender, *receivers = group
    expected = sender.do("digests")
    return all(receiver.do("commit", number=number) == expected for receiver in receivers)


def measure(group: list[Remote], manifest: Manifest, rounds: int, port: int) -> dict[str, Any]:
    """One case: engine and star, interleaved so that both see the same machine."""
    sender, *receivers = group
    total = manifest.total_bytes
    accepting = sender.start("tcp_accept", address=sender.address, port=port, count=len(receivers))
    connecting = [
        receiver.start("tcp_connect", address=sender.address, port=port, nbytes=total)
        for receiver in receivers
    ]
    for future in (accepting, *connecting):
        done(future)
    join(group)
    engine_round(group, manifest, 1)  # faults the pages in
    engine_round(group, manifest, 2)
    engine, star = [], []
    for number in range(rounds):
        engine.append(engine_round(group, manifest, number + 3))
        star.append(tcp_round(group))
    correct = verified(group, rounds + 2)
    for member in group:
        member.do("tcp_close")
    abort(group)
    engine_seconds, star_seconds = statistics.median(engine), statistics.median(star)
    return {
        "engine": "gloo", "receivers": len(receivers), "senders": 1, "bytes": total,
        "rounds": rounds, "gbps_per_receiver": round(total / engine_seconds / 1e9, 3),
        "tcp_gbps_per_receiver": round(total / star_seconds / 1e9, 3),
        "ratio_to_tcp": round(star_seconds / engine_seconds, 3), "verified": correct,
    }  # fmt: skip


def main() -> int:
    """Run all cases; 1 when bytes differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 512], help="MiB")
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    args = parser.parse_args()
    cases: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        World(Path(folder), engine="gloo", start=NURSERY) as world,
    ):
        group = world.group(max(args.receivers))
        memcpy = 0.0
        for size in args.sizes:
            manifest = group[0].do(
                "snapshot", seed=1, megabytes=size, bucket_bytes=args.bucket * MIB
            )
            memcpy = group[0].do("memcpy")
            for receivers in args.receivers:
                port = 20000 + len(cases)
                case = measure(group[: receivers + 1], manifest, args.rounds, port)
                cases.append(case)
                print(json.dumps(case), flush=True)
    print(json.dumps({"memcpy_gbps": round(memcpy / 1e9, 3), "cases": cases}))
    return 0 if all(case["verified"] for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
