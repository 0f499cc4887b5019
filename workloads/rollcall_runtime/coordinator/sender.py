"""The trainer's own seat: rank 0 of every session, and the donor of last resort."""

import asyncio

from rollcall_protocol.ids import Version
from rollcall_protocol.manifest import Manifest
from rollcall_protocol.messages import Delta
from rollcall_runtime.sync.delta import encode
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.staging import Snapshot


class SenderDuties:
    """Owns the snapshot being sent and the one that newcomers may fetch from the trainer."""

    def __init__(self, *, stage_timeout: float) -> None:
        self._stage_timeout = stage_timeout
        self._offered: dict[Version, Snapshot] = {}
        self._encoded: tuple[Version, Snapshot] | None = None

    def offer(self, version: Version, snapshot: Snapshot) -> None:
        """Own `snapshot`, which is what `version` means from now on."""
        self._offered[version] = snapshot

    def retire_all_but(self, version: Version) -> None:
        """Let go of the older snapshots: newcomers are sent to `version` now."""
        for older in [v for v in self._offered if v != version]:
            self._offered.pop(older).release()

    def held(self, version: Version) -> Snapshot | None:
        """For newcomers that catch up from the trainer."""
        return self._offered.get(version)

    def close(self) -> None:
        """Let go of all weights."""
        self._encoded = None
        while self._offered:
            self._offered.popitem()[1].release()

    async def encode(self, version: Version, base: Version | None) -> Delta | None:
        """What makes `version` of `base`, if both are here and that is short; owned from now on."""
        self._encoded = None
        old, new = self._offered.get(base) if base else None, self._offered.get(version)
        if (
            base is None
            or old is None
            or new is None
            or old.manifest.tensors != new.manifest.tensors
        ):
            return None
        made = await asyncio.to_thread(encode, old.buffer.memory, new.buffer.memory, new.manifest)
        if made is None:
            return None
        buffer, manifest = made
        self._encoded = version, Snapshot(manifest, buffer.pin())
        return Delta(base, manifest)

    async def transfer(
        self, session: SyncSession, version: Version, manifest: Manifest, delta: Delta | None
    ) -> None:
        """Send to the session."""
        offered = self._offered.get(version)
        if delta is not None:
            encoded = self._encoded
            offered = encoded[1] if encoded and encoded[0] == version else None
            manifest = delta.manifest
        if offered is None:
            raise SyncError(f"version {version} was never offered")
        snapshot = offered.share()
        try:
            await asyncio.to_thread(
                session.publish, snapshot.buffer, manifest, timeout=self._stage_timeout
            )
        finally:
            snapshot.release()

    async def apply(self, version: Version) -> None:
        """Never asked: COMMIT goes to receivers."""
        raise SyncError(f"the trainer does not receive weights, yet was told to apply {version}")

    async def fetch(self, version: Version, donors: tuple[str, ...]) -> None:
        """Never asked: the trainer is what others catch up from."""
        raise SyncError(f"the trainer does not fetch weights ({version} from {donors})")
