"""When the trainer saves and what it resumes from: weights, step, and the prompts under way."""

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_runtime.membership.incarnation import TrainerIncarnation
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.ownership import claim
from rollcall_runtime.train.collective_errors import raise_on_all_ranks
from rollcall_runtime.train.train_engine import TrainEngine
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

KEPT = 2  # the newest, and one more should its volume be damaged
_NEVER_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class TrainState:
    """What is saved beside weights and optimizer: the step, the number for the next version, the
    prompts under way, and what this life of the trainer began with.
    """

    step: int = 0
    number: int = 0
    ledger: LedgerState | None = None
    incarnation: TrainerIncarnation | None = None


class Checkpointer:
    """Saves every `everySteps` and resumes; without a configuration it does neither.

    `pod_uid` is rank 0's: once another has resumed from the same folder, `restore` and `save` of
    this one raise FencedError there.

    `restore` and `save` are collective: all ranks call them at the same steps. A save that fails
    costs that checkpoint alone: `problem` says why, until one succeeds, and `failures` counts.
    """

    def __init__(self, config: CheckpointConfig | None, *, pod_uid: str) -> None:
        self._config, self._pod_uid = config, pod_uid
        self._saved = 0
        self.failures = 0
        self.problem = ""
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
        if self._config is None:
            return TrainState()
        root = Path(self._config.path)
        try:
            self._claim(engine, root)
        except OSError as error:
            log.warning("cannot claim %s: %s", root, error)
        path = _newest_whole(engine, root)
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
        """Save, and remove what is too old. A failure is told in the log and in `problem`.

        SpecError if the very first one fails because the folder is not to be written to.
        """
        if self._config is None:
            return
        root = Path(self._config.path)
        path = files.checkpoint_path(root, state.step)
        try:
            self._claim(engine, root)
            engine.save_checkpoint(path, state=encode(state))
        except OSError as error:
            if self._saved == 0 and error.errno in _NEVER_WRITABLE:
                problem = f"cannot save to {str(root)!r}: {error}; is the volume writable?"
                raise SpecError("spec.trainer.checkpoint.volume", problem) from error
            self.failures += 1
            self.problem = f"step {state.step} was not saved: {error}"
            log.warning(
                "%s; training goes on, and the next step that is due is tried", self.problem
            )
            tidy = files.discard_scratch
        else:
            self._saved, self.problem = state.step, ""

            def tidy(root: Path) -> None:
                files.prune_checkpoints(root, keep=KEPT, newest=path)

        if engine.data_parallel_rank == 0:
            _tidy(root, tidy)

    def _claim(self, engine: TrainEngine, root: Path) -> None:
        with raise_on_all_ranks(engine.gather):
            if engine.data_parallel_rank == 0:
                claim(root, self._pod_uid)


def _tidy(root: Path, remove: Callable[[Path], None]) -> None:
    try:
        remove(root)
    except OSError as error:
        log.warning("cannot remove what is not needed from %s: %s", root, error)


def _newest_whole(engine: TrainEngine, root: Path) -> Path | None:
    """Rank 0 lists them, each rank reads its share of a candidate's files, and all agree."""
    found: list[Path] = []
    if engine.data_parallel_rank == 0:
        files.mend_checkpoints(root)
        _tidy(root, files.discard_scratch)  # a trainer before this one may be writing there
        found = files.list_checkpoints(root)
    for path in engine.gather(found)[0]:
        problem = _problem(path, part=engine.data_parallel_rank, of=engine.data_parallel_size)
        problems = [told for told in engine.gather(problem) if told]
        if not problems:
            return path
        log.warning("%s is torn and is skipped: %s", path, problems[0])
    return None


def _problem(path: Path, *, part: int, of: int) -> str:
    try:
        files.check_checkpoint(path, part=part, of=of)
    except files.TornError as error:
        return str(error)
    return ""
