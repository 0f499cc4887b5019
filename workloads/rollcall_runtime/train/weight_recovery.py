"""Taking the weights back from a rollout's memory when they are newer than the checkpoint's."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rollcall_protocol.wire.ids import Version
from rollcall_runtime.coordinator.sync_group import Holder
from rollcall_runtime.membership.incarnation import Life
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.weights.catch_up import fetch
from rollcall_runtime.sync.weights.staging import Stage

log = logging.getLogger(__name__)

FETCH_SECONDS = 60.0  # for all donors together; then the checkpoint has to do
MAX_VERSIONS = 2  # the newest may be gone with its last holder
ROLLOUTS = "Rollouts"  # the value of trainer.recoverFrom


@dataclass(frozen=True, slots=True)
class Taken:
    """Whole tensors by name, as they were after `step`, published as `version`."""

    version: Version
    step: int
    weights: Mapping[str, Tensor]


class Recovery:
    """Finds and fetches what rollouts hold. `every` is the number of steps between versions."""

    def __init__(self, *, token: str, every: int) -> None:
        self._token, self._every = token, every

    async def take(
        self, holders: Sequence[Holder], lives: Sequence[Life], *, step: int
    ) -> Taken | None:
        """The newest weights of a step after `step`, from whoever holds them; None if nobody does.

        Only versions of known `lives` count: of others it cannot be told which step they are.
        """
        known = {life.lineage: life for life in lives}
        newer: dict[Version, int] = {}
        for version in {holder.version for holder in holders}:
            life = known.get(version.lineage)
            found = life.step_of(version.number, every=self._every) if life else 0
            if found > step:
                newer[version] = found
        for version in sorted(newer, key=lambda v: (newer[v], v), reverse=True)[:MAX_VERSIONS]:
            donors = sorted(h.address for h in holders if h.version == version)
            weights = await self._fetch(version, donors)
            if weights is not None:
                log.warning(
                    "weights of step %d (version %s) come back from a rollout; optimizer, random "
                    "numbers and prompts are those of step %d", newer[version], version, step,
                )  # fmt: skip
                return Taken(version, newer[version], weights)
        if newer:
            log.warning("no rollout gives its weights back: going on from step %d", step)
        return None

    async def _fetch(self, version: Version, donors: Sequence[str]) -> dict[str, Tensor] | None:
        stage = Stage(buffers=1)
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                await fetch(version=version, donors=donors, token=self._token, stage=stage)
        except (SyncError, TimeoutError) as error:
            log.warning("cannot take %s back: %s", version, str(error) or "too slow")
            return None
        with stage.committing(version) as snapshot:
            return {name: tensor.clone() for name, tensor in snapshot.tensors()}
