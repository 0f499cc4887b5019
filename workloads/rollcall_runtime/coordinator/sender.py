"""The trainer's own seat: rank 0 of every session, and the donor of last resort."""

import asyncio

from rollcall_protocol.ids import Version
from rollcall_protocol.manifest import Manifest
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.staging import PinnedWeights, ServedWeights


class SenderDuties:
    """Owns the version being sent and the one that newcomers may fetch from the trainer."""

    def __init__(self, *, stage_timeout: float) -> None:
        self.served = ServedWeights()
        self._stage_timeout = stage_timeout
        self._outgoing: PinnedWeights | None = None

    def offer(self, weights: PinnedWeights) -> None:
        """Own `weights`, which are sent next; what was offered before is let go."""
        self._replace(weights)

    def serve(self, version: Version | None) -> None:
        """The group commits `version`: newcomers fetch it from now on, not an older one."""
        outgoing = self._outgoing
        if outgoing is not None and outgoing.weights.version == version != self.served.version:
            self.served.swap(outgoing.share())

    def close(self) -> None:
        """Let go of all weights."""
        self._replace(None)
        self.served.swap(None)

    async def transfer(self, session: SyncSession, version: Version, manifest: Manifest) -> None:
        """Send to the session."""
        if self._outgoing is None or self._outgoing.weights.version != version:
            raise SyncError(f"version {version} was never offered")
        weights = self._outgoing.share()
        try:
            await asyncio.to_thread(
                session.publish, weights.weights.buffer, manifest, timeout=self._stage_timeout
            )
        finally:
            weights.release()

    async def apply(self, version: Version) -> None:
        """Never asked: COMMIT goes to receivers."""
        raise SyncError(f"the trainer does not receive weights, yet was told to apply {version}")

    async def fetch(self, version: Version, donors: tuple[str, ...]) -> None:
        """Never asked: the trainer is what others catch up from."""
        raise SyncError(f"the trainer does not fetch weights ({version} from {donors})")

    def _replace(self, weights: PinnedWeights | None) -> None:
        old, self._outgoing = self._outgoing, weights
        if old is not None:
            old.release()
