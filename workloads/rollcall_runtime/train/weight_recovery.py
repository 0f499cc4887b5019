"""Recovers weights from a rollout's memory when they are newer than the checkpoint's."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.sync_group_driver import WeightHolder
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.weights.catch_up import fetch
from rollcall_runtime.sync.weights.staging import StagingArea

log = logging.getLogger(__name__)

FETCH_SECONDS = 60.0  # for all donors together; then the checkpoint's weights are used
MAX_VERSIONS = 2  # the newest may be gone with its last holder
ROLLOUTS = "Rollouts"  # the value of trainer.recoverFrom


@dataclass(frozen=True, slots=True)
class RecoveredWeights:
    """Whole tensors by name, as they were after `step`, published as `version`."""

    version: Version
    step: int
    weights: Mapping[str, Tensor]


class WeightRecovery:
    """Finds and fetches what rollouts hold, for the `tickets` of a version and its donors.

    `every` is the number of steps between versions. `manifest_of` a version is what the trainer
    published: weights that differ from it are not taken.
    """

    def __init__(
        self,
        *,
        tickets: Callable[[Version, Sequence[str]], tuple[str, ...]],
        manifest_of: Callable[[Version], WeightManifest | None],
        every: int,
    ) -> None:
        self._tickets, self._manifest_of, self._every = tickets, manifest_of, every

    async def recover(
        self,
        holders: Sequence[WeightHolder],
        incarnations: Sequence[TrainerIncarnation],
        *,
        step: int,
    ) -> RecoveredWeights | None:
        """The newest weights of a step after `step` that a rollout holds; None if none does.

        Only versions of known `incarnations` count: the step of any other version is unknown.
        """
        known = {incarnation.lineage: incarnation for incarnation in incarnations}
        newer: dict[Version, int] = {}
        for version in {holder.version for holder in holders}:
            incarnation = known.get(version.lineage)
            found = incarnation.step_of(version.number, every=self._every) if incarnation else 0
            if found > step:
                newer[version] = found
        for version in sorted(newer, key=lambda v: (newer[v], v), reverse=True)[:MAX_VERSIONS]:
            donors = sorted(h.address for h in holders if h.version == version)
            weights = await self._fetch(version, donors)
            if weights is not None:
                log.warning(
                    "recovered the weights of step %d (version %s) from a rollout; optimizer, "
                    "random state and prompts are those of the checkpoint of step %d",
                    newer[version],
                    version,
                    step,
                )
                return RecoveredWeights(version, newer[version], weights)
        if newer:
            log.warning("no rollout sent its newer weights: training resumes from step %d", step)
        return None

    async def _fetch(self, version: Version, donors: Sequence[str]) -> dict[str, Tensor] | None:
        manifest = await asyncio.to_thread(self._manifest_of, version)
        if manifest is None:
            return None
        stage = StagingArea(buffers=1)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                tickets = self._tickets(version, donors)
                await fetch(
                    version=version,
                    manifest=manifest,
                    donors=donors,
                    tickets=tickets,
                    stage=stage,
                )
        except (SyncError, TimeoutError) as error:
            reason = str(error) or f"timed out after {FETCH_SECONDS:g} s"
            log.warning("cannot fetch version %s from rollouts: %s", version, reason)
            return None
        with stage.committing(version) as snapshot:
            return {name: tensor.clone() for name, tensor in snapshot.tensors()}
