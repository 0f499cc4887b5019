"""Models that are saved together, as one checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checkpointer import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollcall_runtime.train.checkpoint.checkpointer import CheckpointedModel
    from rollcall_runtime.train.process_group import TrainerProcessGroup

log = logging.getLogger(__name__)

CRITIC_FOLDER = "critic"


class ActorAndCritic:
    """The critic is saved in a folder beside the actor's checkpoints, under the same name.

    It is written first, so that a step with the actor's weights has the critic's.
    """

    def __init__(
        self,
        actor: CheckpointedModel,
        critic: CheckpointedModel,
        *,
        ranks: TrainerProcessGroup,
    ) -> None:
        self._actor, self._critic, self._ranks = actor, critic, ranks

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        """Collective. As TrainEngine's."""
        beside = _critic_path(path)
        write_critic = self._critic.prepare_checkpoint(beside, state={})
        write_actor = self._actor.prepare_checkpoint(path, state=state)

        def write() -> None:
            write_critic()
            write_actor()
            if self._ranks.rank == 0:
                files.prune_checkpoints(beside.parent, keep=KEPT, newest=beside)

        return write

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Collective. As TrainEngine's; a damaged critic starts from its model."""
        beside = _critic_path(path)
        problem = self._ranks.broadcast_value(_problem(beside) if self._ranks.rank == 0 else "")
        if problem:
            log.warning("the critic starts from its model again: %s", problem)
        else:
            self._critic.load_checkpoint(beside)
        return self._actor.load_checkpoint(path)


def _critic_path(path: Path) -> Path:
    return path.parent / CRITIC_FOLDER / path.name


def _problem(path: Path) -> str:
    try:
        files.check_checkpoint(path)
    except files.TornError as error:
        return f"{path}: {error}"
    return ""
