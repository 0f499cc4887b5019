"""Writes the model to `spec.trainer.exportPath` when training is done."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_runtime.train.checkpoint_export import export_weights
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.train.process_group import TrainerProcessGroup
    from rollcall_runtime.train.train_engine import TrainEngine

FIELD = "spec.trainer.exportPath"

log = logging.getLogger(__name__)


class FinalExport:
    """The export of a training of `last_step` steps to `folder`; with an empty one there is none.

    A trainer that starts again after its last step exports what it had no time to; what is there is
    not written again.
    """

    def __init__(self, folder: str, *, last_step: int, ranks: TrainerProcessGroup) -> None:
        self._folder = Path(folder) if folder else None
        self._last_step, self._ranks = last_step, ranks

    def check(self, step: int) -> None:
        """Collective, before training goes on after `step`.

        SpecError, on all ranks, if rank 0 will not be able to write the folder.
        """
        if self._folder is None or step >= self._last_step:
            return
        found = _problem(self._folder) if self._ranks.rank == 0 else None
        problem = self._ranks.broadcast_value(found)
        if problem:
            raise SpecError(FIELD, problem)

    def write(self, engine: TrainEngine, step: int) -> None:
        """Collective, when training ends after `step`: export if that is the last one.

        OSError, on all ranks, if rank 0 cannot write the folder.
        """
        if self._folder is None or step < self._last_step:
            return
        found = self._folder.exists() if self._ranks.rank == 0 else None
        if not self._ranks.broadcast_value(found):
            export_weights(engine, self._folder)
            log.info("exported the model to %s", self._folder)


def _problem(folder: Path) -> str:
    """Why `folder` cannot be written; "" if it can."""
    if folder.exists():
        return f"{str(folder)!r} is there already; name a new folder"
    advice = "name a folder on a volume of the trainer that is mounted for writing"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"cannot make {str(folder.parent)!r}: {error}; {advice}"
    if not os.access(folder.parent, os.W_OK):
        return f"{str(folder.parent)!r} cannot be written to; {advice}"
    return ""
