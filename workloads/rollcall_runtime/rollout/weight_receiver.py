"""Receives weight versions into the staging area and loads them into the inference engine."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass

from torch import Tensor

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import WeightDelta
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.rollout.inference_engine import (
    InferenceEngine,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.sync.engine import SyncSession
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import GrowingBufferPool
from rollcall_runtime.sync.weights.catch_up import fetch
from rollcall_runtime.sync.weights.delta import decode
from rollcall_runtime.sync.weights.shards import Shard, receive, select, tensors
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.worker.telemetry import RolloutMetrics

BUFFER_SECONDS = 5.0  # to wait for a staging buffer that an aborted session still holds
DELTA_BUFFERS = 2  # what is received, and what an aborted session still holds


class ApplyFailedError(SyncError):
    """The inference engine refused the weights and still serves the former ones."""

    own_fault = True


@dataclass(frozen=True, slots=True)
class WeightReceiverSettings:
    """`pause_mode` applies to generations that run at a commit; timeouts in seconds.

    The coordinator ends a transfer that takes too long; one of a session that it does not end has
    the most that it allows, STRETCH_LIMIT times `stage_timeout`.
    """

    pause_mode: PauseMode
    stage_timeout: float
    commit_timeout: float


class WeightReceiver:
    """The WeightHandler of a rollout. Belongs to one event loop; blocking work runs in threads.

    What the engine does with staged weights goes on to its end when a session is aborted meanwhile.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        stage: StagingArea,
        served: ServedVersions,
        settings: WeightReceiverSettings,
        metrics: RolloutMetrics,
        delta: DeltaConfig | None = None,
        shard: Shard | None = None,
    ) -> None:
        self._engine, self._stage, self._served = engine, stage, served
        self._settings, self._metrics = settings, metrics
        self._delta, self._deltas = delta or DeltaConfig(), GrowingBufferPool(limit=DELTA_BUFFERS)
        self._shard = shard  # the part to receive, None for everything
        self._patched = False  # whether what is staged came as a delta
        self._preparing: asyncio.Future[None] | None = None
        self._newest = -1
        self._one_at_a_time = asyncio.Lock()  # of what the engine does with weights

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        """Receive `version` into the staging area and verify it, or apply the delta to its base."""
        self._track_lag(version)
        self._patched = delta is not None
        if delta is None:
            await asyncio.to_thread(self._receive, session, version, manifest)
        else:
            await asyncio.to_thread(self._receive_delta, session, version, manifest, delta)
        await self._to_its_end(self._prepare(version))

    async def apply(self, version: Version) -> None:
        """Serve the staged version; on ApplyFailedError or StagingError the old one stays."""
        await self._to_its_end(self._apply(version))
        self._metrics.weight_version.set(version.number)
        self._track_lag(version)
        if self._patched:  # the next one is likely to be a delta too: prepare in the background
            loop = asyncio.get_running_loop()
            self._preparing = loop.run_in_executor(None, self._stage.prepare)

    async def fetch(
        self,
        version: Version,
        manifest: WeightManifest,
        *,
        donors: tuple[str, ...],
        tickets: tuple[str, ...],
    ) -> tuple[str, ...]:
        """Stage `version` from the first donor that gives it; returns those that gave another."""
        self._track_lag(version)
        self._patched = False
        wrong = await fetch(
            version=version,
            manifest=manifest,
            donors=donors,
            tickets=tickets,
            stage=self._stage,
            shard=self._shard,
        )
        await self._to_its_end(self._prepare(version))
        return wrong

    def _receive(self, session: SyncSession, version: Version, manifest: WeightManifest) -> None:
        receive(
            session,
            version,
            manifest,
            shard=self._shard,
            stage=self._stage,
            patience=BUFFER_SECONDS,
            timeout=STRETCH_LIMIT * self._settings.stage_timeout,
        )

    def _receive_delta(
        self, session: SyncSession, version: Version, manifest: WeightManifest, delta: WeightDelta
    ) -> None:
        size, timeout = delta.manifest.total_bytes, BUFFER_SECONDS
        taken = select(manifest, self._shard) if self._shard else None
        kept = taken.manifest if taken else manifest
        hold, encoded = self._deltas.take(size, timeout=timeout)
        with (
            hold,
            self._stage.patching(version, kept, base=delta.base, timeout=timeout) as (buffer, base),
        ):
            longest = STRETCH_LIMIT * self._settings.stage_timeout
            session.receive(encoded, delta.manifest, timeout=longest)
            decode(
                encoded.memory,
                delta.manifest,
                manifest,
                buffer.memory,
                base=base.buffer.memory if base else None,
                config=self._delta,
                only=taken.buckets if taken else None,
            )

    async def _to_its_end(self, work: Coroutine[None, None, None]) -> None:
        """Go on with `work` although the caller is cancelled: the engine reads what is staged."""

        async def one() -> None:
            async with self._one_at_a_time:
                await work

        await asyncio.shield(asyncio.create_task(one()))

    async def _prepare(self, version: Version) -> None:
        with self._stage.staged(version) as weights:
            try:
                await self._engine.prepare(self._tensors(weights), version=version.number)
            except (WeightMismatchError, OSError, RuntimeError) as error:
                raise ApplyFailedError(f"{version}: {type(error).__name__}: {error}") from error

    async def _apply(self, version: Version) -> None:
        with self._stage.committing(version) as weights:
            try:
                with self._served.changing_to(version):
                    await self._engine.update_from_staged(
                        weights,
                        self._tensors(weights),
                        version=version.number,
                        running=self._settings.pause_mode,
                        # Half of the coordinator's time limit, so that the answer arrives in time.
                        seconds=self._settings.commit_timeout / 2,
                    )
            except (WeightMismatchError, OSError, RuntimeError) as error:
                raise ApplyFailedError(f"{version}: {type(error).__name__}: {error}") from error

    def _tensors(self, weights: WeightSnapshot) -> Iterator[tuple[str, Tensor]]:
        """Cut as the engine wants them, unless they were received like that."""
        return tensors(weights, None if self._shard else self._engine.shard)

    def _track_lag(self, version: Version) -> None:
        self._newest = max(self._newest, version.number)
        served = self._engine.version
        self._metrics.weight_lag.set(self._newest - served if served is not None else 0)
