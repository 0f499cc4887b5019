"""The way of weights from an engine to a rollout, as in a job: snapshot, session, flat buffer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.json_codec import decode, encode
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.sync.engine import Role, SyncEngine, encode_descriptor
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.multi_sender import open_session
from rollcall_runtime.sync.registry import create_engine
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.worker.engine_config import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from rollcall_runtime.train.train_engine import TrainEngine

_BUCKET_BYTES = 16 << 10
_SECONDS = 20.0
_GROUP, _SESSION = "engine-suite", SessionId(1, 1, 1)


class WeightSender:
    """A trainer rank that sends a snapshot of an engine's weights. Collective, as the engine is.

    `sharded`: each rank sends its shards; else rank 0 sends whole tensors and the others nothing.
    """

    def __init__(self, trained: TrainEngine, *, rank: int, sharded: bool) -> None:
        self._rank = rank
        self._owned = ExitStack()
        if sharded:
            named = ((one.info.name, one.tensor) for one in trained.weight_shards())
            self._snapshot: WeightSnapshot | None = _snapshot(named)
        elif rank == 0:
            self._snapshot = _snapshot(trained.named_weights())
        else:
            self._snapshot = None
            for _ in trained.named_weights():
                pass  # gathering is collective
        if self._snapshot is not None:
            self._owned.callback(self._snapshot.release)
        self._engine: SyncEngine | None = None

    def open(self, transport: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Open a sync engine; returns this rank's seat and manifest, None if it sends nothing."""
        if self._snapshot is None:
            return None
        self._engine, seat = _open(transport, config, role=Role.SENDER, number=self._rank)
        self._owned.callback(self._engine.close)
        return {"seat": encode(seat), "manifest": encode(self._snapshot.manifest)}

    def publish(self, *, seats: Sequence[Any], manifest: Any, senders: int) -> None:
        """Send this rank's part to the receivers among `seats`."""
        if self._engine is None or self._snapshot is None:
            return
        session = open_session(
            self._engine,
            group=_GROUP,
            session=_SESSION,
            seats=[decode(Seat, seat) for seat in seats],
            rank=self._rank,
            senders=senders,
        )
        session.join(timeout=_SECONDS)
        whole = decode(WeightManifest, manifest)
        session.publish(self._snapshot.host, whole, timeout=_SECONDS)

    def close(self) -> None:
        """Release the snapshot and the sync engine."""
        self._owned.close()


def receive_weights(
    transport: str,
    config: Mapping[str, Any],
    senders: Sequence[Mapping[str, Any]],
    *,
    publish: Callable[..., None],
) -> dict[str, Tensor]:
    """What a rollout receives from `senders`, the replies of WeightSender.open.

    `publish` has the ranks begin to send, and returns.
    """
    manifest = combine_manifests([decode(WeightManifest, one["manifest"]) for one in senders])
    count = len(senders)
    engine, seat = _open(transport, config, role=Role.RECEIVER, number=count)
    try:
        seats = [*(decode(Seat, one["seat"]) for one in senders), seat]
        publish(seats=encode(seats), manifest=encode(manifest), senders=count)
        session = open_session(
            engine, group=_GROUP, session=_SESSION, seats=seats, rank=count, senders=count
        )
        session.join(timeout=_SECONDS)
        buffer = HostBuffer(manifest.total_bytes)
        session.receive(buffer, manifest, timeout=_SECONDS)
        snapshot = WeightSnapshot(manifest, buffer.hold())
        return {name: tensor.clone() for name, tensor in snapshot.tensors()}
    finally:
        engine.close()


def _snapshot(named: Any) -> WeightSnapshot:
    snapshotter = Snapshotter(bucket_bytes=_BUCKET_BYTES, buffers=1)
    return snapshotter.take(named, timeout=_SECONDS).finish()


def _open(
    transport: str, config: Mapping[str, Any], *, role: Role, number: int
) -> tuple[SyncEngine, Seat]:
    engine = create_engine(transport, device="cpu")
    member, address = MemberId(f"pod-{number}", "boot"), f"127.0.6.{number + 1}"
    settings = read_settings(engine.settings_type, config, field="spec.weightSync.config")
    descriptor = engine.open(member=member, address=address, role=role, settings=settings)
    return engine, Seat(member, address, encode_descriptor(descriptor))
