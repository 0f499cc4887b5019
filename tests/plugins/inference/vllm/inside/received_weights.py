"""A rollout's receiver in front of an engine, and versions that reach it from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.rollout.inference_engine import PauseMode
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.rollout.weight_receiver import WeightReceiver, WeightReceiverSettings
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_runtime.coordinator.fake_group import MemorySession
from tests.unit.rollcall_runtime.rollout.fake_engine import rollout_metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from rollcall_protocol.wire.weight_manifest import WeightManifest
    from rollcall_runtime.rollout.inference_engine import InferenceEngine

SEATS = [Seat(MemberId(str(number), "b"), "", "") for number in range(2)]


class _Sent(MemorySession):
    """Gives a receiver the bytes of a snapshot."""

    def __init__(self, snapshot: WeightSnapshot) -> None:
        super().__init__(session=SessionId(1, 1, 1), seats=SEATS, rank=1)
        self._snapshot = snapshot

    def receive(self, buffer: Any, manifest: WeightManifest, *, timeout: float) -> None:
        buffer.memory[:] = self._snapshot.host.memory


class Receiver:
    """The rollout's own, which receives what a test sends."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._receiver = WeightReceiver(
            engine=engine,
            stage=StagingArea(shared=engine.reads_shared_memory),
            served=ServedVersions(),
            settings=WeightReceiverSettings(PauseMode.KEEP, stage_timeout=60, commit_timeout=120),
            metrics=rollout_metrics(),
        )

    async def stage(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        manifest: WeightManifest | None = None,
    ) -> None:
        """Receive `weights` and prepare them, as `manifest` describes them, if one is given."""
        snapshot = Snapshotter(bucket_bytes=1 << 20).take(weights, timeout=0).finish()
        described = manifest or snapshot.manifest
        await self._receiver.transfer(_Sent(snapshot), of(version), described, None)

    async def commit(self, version: int) -> None:
        """Serve the staged version."""
        await self._receiver.apply(of(version))


def of(number: int) -> Version:
    return Version(Lineage(1, 1), number)


def described(weights: Iterable[tuple[str, Tensor]]) -> WeightManifest:
    """What the trainer says of `weights`."""
    return Snapshotter(bucket_bytes=1 << 20).take(weights, timeout=0).finish().manifest
