"""Models that are saved together, as one checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checkpointer import KEPT
from rollcall_runtime.train.checkpoint.soundness import checkpoint_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollcall_runtime.train.checkpoint.checkpointer import CheckpointedModel
    from rollcall_runtime.train.process_group import TrainerProcessGroup

log = logging.getLogger(__name__)


class ActorAndOthers:
    """Each of `others`, by the name of its role, is saved in a folder of this name beside the
    actor's checkpoints, under the same name.

    They are written first, so that a step with the actor's weights has theirs.
    """

    def __init__(
        self,
        actor: CheckpointedModel,
        others: Mapping[str, CheckpointedModel],
        *,
        ranks: TrainerProcessGroup,
    ) -> None:
        self._actor, self._others, self._ranks = actor, others, ranks

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        """Collective. Copies all models; returns what writes the copies. As TrainEngine's."""
        beside = {role: _beside(path, role) for role in self._others}
        writes = [
            model.prepare_checkpoint(beside[role], state={}) for role, model in self._others.items()
        ]
        writes.append(self._actor.prepare_checkpoint(path, state=state))

        def write() -> None:
            for write_one in writes:
                write_one()
            if self._ranks.rank == 0:
                for written in beside.values():
                    files.prune_checkpoints(written.parent, keep=KEPT, newest=written)

        return write

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Collective. As TrainEngine's; one of the others that is damaged starts from its model."""
        for role, model in self._others.items():
            beside = _beside(path, role)
            found = checkpoint_problem(beside) if self._ranks.rank == 0 else ""
            problem = self._ranks.broadcast_value(found)
            if problem:
                log.warning("the %s starts from its model again: %s: %s", role, beside, problem)
            else:
                model.load_checkpoint(beside)
        return self._actor.load_checkpoint(path)


def _beside(path: Path, role: str) -> Path:
    return path.parent / role / path.name
