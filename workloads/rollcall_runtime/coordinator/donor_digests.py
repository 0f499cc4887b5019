"""BLAKE3 digests of the version that newcomers fetch from donors, computed once for all of them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.coordinator.sender_parts import SenderParts
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot, digests_of


class DonorDigests:
    """Those of the newest version that was asked for. Belongs to one event loop.

    `held` gives rank 0's part of a version, or None. All ranks have `timeout` seconds.
    """

    def __init__(
        self,
        *,
        held: Callable[[Version], WeightSnapshot | None],
        parts: SenderParts,
        timeout: float,
    ) -> None:
        self._held, self._parts, self._timeout = held, parts, timeout
        self._made: tuple[Version, asyncio.Task[WeightManifest]] | None = None

    def begin(self, version: Version, manifest: WeightManifest) -> asyncio.Task[WeightManifest]:
        """Compute what `of` gives, unless that was begun; `of` is still to be called."""
        if self._made is None or self._made[0] != version:
            work = self._compute(version, manifest)
            self._made = version, asyncio.get_running_loop().create_task(work)
        return self._made[1]

    async def of(self, version: Version, manifest: WeightManifest) -> WeightManifest:
        """`manifest` with digests in place of checksums. SyncError if a part is no longer held."""
        try:
            return await asyncio.shield(self.begin(version, manifest))
        except SyncError:
            self._made = None
            raise

    async def _compute(self, version: Version, manifest: WeightManifest) -> WeightManifest:
        held = self._held(version)
        if held is None:
            raise SyncError(f"the trainer no longer holds {version}")
        own = asyncio.to_thread(digests_of, held.share())
        try:
            async with asyncio.timeout(self._timeout):
                mine, others = await asyncio.gather(own, self._parts.digests(version))
        except TimeoutError as error:
            raise SyncError(f"no digests of {version} after {self._timeout:g} s") from error
        try:
            return replace(manifest, digests=mine + others, check=BucketCheck.BLAKE3)
        except ValueError as error:
            raise SyncError(f"the digests of {version} do not fit it: {error}") from error
