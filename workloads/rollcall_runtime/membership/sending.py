"""How a trainer rank, as a member of a sync group, sends weights to the others."""

import asyncio

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import Buffer


class WeightSender:
    """What a seat of the trainer does on any rank, and what it is never asked to do."""

    def __init__(self, *, stage_timeout: float) -> None:
        self._stage_timeout = stage_timeout

    async def publish(
        self,
        session: SyncSession,
        buffer: Buffer,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Send `buffer`, which the delta's manifest describes if there is one."""
        described = manifest if delta is None else delta.manifest
        with buffer.pin():
            await asyncio.to_thread(session.publish, buffer, described, timeout=self._stage_timeout)

    async def apply(self, version: Version) -> None:
        """Never asked: COMMIT goes to receivers."""
        raise SyncError(f"the trainer does not receive weights, yet was told to apply {version}")

    async def fetch(self, version: Version, donors: tuple[str, ...]) -> None:
        """Never asked: the trainer is what others catch up from."""
        raise SyncError(f"the trainer does not fetch weights ({version} from {donors})")
