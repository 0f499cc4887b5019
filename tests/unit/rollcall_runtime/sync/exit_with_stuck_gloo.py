"""A program that ends while gloo is still busy with an aborted session."""

import threading
import time

import torch

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import Role, encode_descriptor
from rollcall_runtime.sync.engines.gloo import GlooEngine, GlooSettings
from rollcall_runtime.sync.errors import AbortedError
from rollcall_runtime.sync.weights.snapshots import Snapshotter

SETTINGS = GlooSettings(operation_timeout=1.0)


def main() -> None:
    """Send to a receiver that does not receive, abort, and return."""
    engines, seats = [GlooEngine(), GlooEngine()], []
    for index, role in enumerate((Role.SENDER, Role.RECEIVER)):
        member, address = MemberId(f"pod-{index}", "b"), f"127.0.4.{index + 1}"
        descriptor = engines[index].open(
            member=member, address=address, role=role, settings=SETTINGS
        )
        seats.append(Seat(member, address, encode_descriptor(descriptor)))
    sessions = [
        engine.open_session(group="g", session=SessionId(1, 1, 1), seats=seats, rank=rank)
        for rank, engine in enumerate(engines)
    ]
    receiving = threading.Thread(target=sessions[1].join, kwargs={"timeout": 5.0})
    receiving.start()
    sessions[0].join(timeout=5.0)
    receiving.join()
    taken = Snapshotter(bucket_bytes=1 << 20).take([("w", torch.zeros(10_000_000))], timeout=1)
    snapshot = taken.finish()
    threading.Timer(0.2, sessions[0].abort).start()
    began = time.monotonic()
    try:
        sessions[0].publish(snapshot.buffer, snapshot.manifest, timeout=5.0)
    except AbortedError:
        print(f"aborted after {time.monotonic() - began:.1f} s, {engines[0].abandoned} stuck")


if __name__ == "__main__":
    main()
