"""What a trainer rank does as a member of a sync group: it sends weights and receives none."""

import asyncio

from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import Buffer


class WeightSender:
    """The WeightHandler of a trainer rank; subclasses decide which buffer `transfer` sends.

    The coordinator ends a transfer that takes too long. One that it does not end has the most that
    it allows, STRETCH_LIMIT times `stage_timeout`.
    """

    def __init__(self, *, stage_timeout: float) -> None:
        self._longest = STRETCH_LIMIT * stage_timeout

    async def publish(
        self,
        session: SyncSession,
        buffer: Buffer,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Send `buffer`; with a `delta`, the delta's manifest describes it."""
        described = manifest if delta is None else delta.manifest
        with buffer.hold():
            await asyncio.to_thread(session.publish, buffer, described, timeout=self._longest)

    async def apply(self, version: Version) -> None:
        """Always SyncError: COMMIT goes to receivers only."""
        raise SyncError(f"the trainer does not receive weights and cannot apply {version}")

    async def fetch(
        self,
        version: Version,
        manifest: WeightManifest,  # noqa: ARG002 - a WeightHandler's
        *,
        donors: tuple[str, ...],
        tickets: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Always SyncError: the trainer does not catch up from others."""
        raise SyncError(
            f"the trainer does not fetch weights ({version} from {donors}, {len(tickets)} tickets)"
        )
