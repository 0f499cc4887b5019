"""The trainer's own seat: rank 0 of every session, and the donor of last resort."""

from collections.abc import Sequence

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.membership.sending import WeightSender
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.weights.delta import DeltaEncoder, EncodedDelta
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot


class SnapshotSender(WeightSender):
    """Owns the snapshot being sent and the one that newcomers may fetch from the trainer."""

    def __init__(self, *, stage_timeout: float, delta: DeltaConfig | None = None) -> None:
        super().__init__(stage_timeout=stage_timeout)
        self._encoder = DeltaEncoder(delta) if delta else None
        self._offered: dict[Version, WeightSnapshot] = {}
        self._encoded: tuple[Version, EncodedDelta] | None = None

    def offer(self, version: Version, snapshot: WeightSnapshot) -> None:
        """Own `snapshot`, which is what `version` means from now on."""
        self._offered[version] = snapshot

    def retire_all_but(self, version: Version) -> None:
        """Let go of the older snapshots: newcomers are sent to `version` now."""
        for older in [v for v in self._offered if v != version]:
            self._offered.pop(older).release()

    def held(self, version: Version) -> WeightSnapshot | None:
        """For newcomers that catch up from the trainer."""
        return self._offered.get(version)

    def close(self) -> None:
        """Let go of all weights."""
        self._encoded = None
        while self._offered:
            self._offered.popitem()[1].release()

    async def encode(
        self, version: Version, base: Version | None, others: Sequence[WeightManifest | None]
    ) -> WeightDelta | None:
        """What makes `version` of `base`: this rank's part, before what the `others` have made.

        None when a part is missing, on this rank or another; owned from now on.
        """
        self._encoded = None
        if self._encoder is None or base is None or None in others:
            return None
        old, new = self._offered.get(base), self._offered.get(version)
        made = await self._encoder.encode(old, new)
        if made is None:
            return None
        self._encoded = version, made
        parts = [made.manifest, *(other for other in others if other is not None)]
        return WeightDelta(base, combine_manifests(parts) if others else made.manifest)

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Send to the session."""
        buffer = self._buffer(version, delta, session.memories)
        await self.publish(session, buffer, manifest, delta)

    def _buffer(
        self, version: Version, delta: WeightDelta | None, memories: frozenset[str]
    ) -> Buffer:
        if delta is None:
            if version in self._offered:
                return self._offered[version].buffer_in(memories)
        elif self._encoded is not None and self._encoded[0] == version:
            return self._encoded[1].buffer
        raise SyncError(f"version {version} was never offered")
