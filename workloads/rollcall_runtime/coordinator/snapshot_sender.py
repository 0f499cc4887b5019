"""Rank 0's weights: sent in every session, and fetched by members that no peer can serve."""

from collections.abc import Sequence

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.membership.weight_sender import WeightSender
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.weights.delta import DeltaEncoder, EncodedDelta
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot


class SnapshotSender(WeightSender):
    """Owns the snapshot being sent and the one that new members may fetch from the trainer."""

    def __init__(self, *, stage_timeout: float, delta: DeltaConfig | None = None) -> None:
        super().__init__(stage_timeout=stage_timeout)
        self._encoder = DeltaEncoder(delta) if delta else None
        self._offered: dict[Version, WeightSnapshot] = {}
        self._encoded: tuple[Version, EncodedDelta] | None = None

    def offer(self, version: Version, snapshot: WeightSnapshot) -> None:
        """Take ownership of `snapshot`, the weights of `version`."""
        self._offered[version] = snapshot

    def release_all_but(self, version: Version) -> None:
        """Release the older snapshots: new members fetch `version` from now on."""
        for older in [v for v in self._offered if v != version]:
            self._offered.pop(older).release()

    def held(self, version: Version) -> WeightSnapshot | None:
        """The snapshot of `version` for a member that fetches it, if it is held."""
        return self._offered.get(version)

    def close(self) -> None:
        """Release all snapshots and the encoded delta."""
        self._encoded = None
        while self._offered:
            self._offered.popitem()[1].release()

    async def encode(
        self, version: Version, base: Version | None, others: Sequence[WeightManifest | None]
    ) -> WeightDelta | None:
        """The delta from `base` to `version`: this rank's part and the `others`'.

        None when a part is missing, on this rank or another. The encoded bytes are owned here.
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
        """Send `version`, or its delta, to the session."""
        buffer = self._buffer(version, delta, session.buffer_devices)
        await self.publish(session, buffer, manifest, delta)

    def _buffer(
        self, version: Version, delta: WeightDelta | None, buffer_devices: frozenset[str]
    ) -> Buffer:
        if delta is None:
            if version in self._offered:
                return self._offered[version].buffer_in(buffer_devices)
        elif self._encoded is not None and self._encoded[0] == version:
            return self._encoded[1].buffer
        raise SyncError(f"version {version} is not held here")
