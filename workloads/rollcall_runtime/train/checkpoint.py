"""When the trainer saves and what it resumes from: weights, step, and the prompts under way."""

import logging
from dataclasses import dataclass
from pathlib import Path

from rollcall_protocol.codec import CodecError, decode, encode
from rollcall_protocol.config import CheckpointConfig
from rollcall_protocol.prompts import LedgerState
from rollcall_runtime.errors import SpecError
from rollcall_runtime.train.checkpoints import (
    checkpoint_path,
    latest_checkpoint,
    prune_checkpoints,
)
from rollcall_runtime.train.engine import TrainEngine

log = logging.getLogger(__name__)

KEPT = 2  # the newest, and one more should its volume be damaged


@dataclass(frozen=True, slots=True)
class TrainState:
    """What is saved beside weights and optimizer: the step, the number for the next version, and
    the prompts under way.
    """

    step: int = 0
    number: int = 0
    ledger: LedgerState | None = None


class Checkpoints:
    """Saves every `everySteps` and resumes; without a configuration it does neither.

    `restore` and `save` are collective: all ranks call them at the same steps.
    """

    def __init__(self, config: CheckpointConfig | None) -> None:
        self._config = config
        self._saved = 0
        if config is not None and config.every_steps < 1:
            raise SpecError("spec.trainer.checkpoint.everySteps", "must be at least 1")

    def due(self, step: int) -> bool:
        """Whether to save after `step`."""
        return self._config is not None and step % self._config.every_steps == 0

    def unsaved(self, step: int) -> bool:
        """Whether `step` would be lost if the trainer stopped now."""
        return self._config is not None and step > self._saved

    def restore(self, engine: TrainEngine) -> TrainState:
        """Continue from the newest whole checkpoint, or from the beginning."""
        path = latest_checkpoint(Path(self._config.path)) if self._config else None
        if path is None:
            return TrainState()
        try:
            state = decode(TrainState, engine.load_checkpoint(path))
        except CodecError as error:
            raise ValueError(f"{path} is no checkpoint of this release: {error}") from error
        self._saved = state.step
        log.info("resumed from %s", path)
        return state

    def save(self, engine: TrainEngine, state: TrainState) -> None:
        """Save, and remove what is too old. SpecError if the folder is not to be written to."""
        if self._config is None:
            return
        root = Path(self._config.path)
        try:
            engine.save_checkpoint(checkpoint_path(root, state.step), state=encode(state))
            if engine.data_parallel_rank == 0:
                prune_checkpoints(root, keep=KEPT)
        except (PermissionError, NotADirectoryError) as error:
            problem = f"cannot save to {str(root)!r}: {error}; is the volume writable?"
            raise SpecError("spec.trainer.checkpoint.volume", problem) from error
        self._saved = state.step
