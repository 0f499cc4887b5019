"""When the trainer saves and what it resumes from: weights, step, and the prompts in flight.

A save copies the training state and writes the copy in a thread, beside training: a volume that is
slow, or that hangs as an NFS server can, costs checkpoints and no training time.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rollcall_protocol.job_config import CONTINUE, CheckpointConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.wire.json_codec import CodecError, decode, encode
from rollcall_runtime.data.data_identity import DataIdentity
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.ownership import claim
from rollcall_runtime.train.checkpoint.soundness import checkpoint_problem
from rollcall_runtime.train.collective_errors import raise_on_all_ranks
from rollcall_runtime.train.finite_weights import NotFiniteError
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

FIELD = "spec.trainer.checkpoint.volume"
KEPT = 2  # the newest, and one more in case that is damaged
PATIENCE_SECONDS = 5.0  # that a save which is due waits for the one before, once
FINAL_SECONDS = 300.0  # to wait for a save at the end of training
_OTHER_CHECKPOINT = (
    "name another volume, empty this one, or correct model, engine and the engine's settings"
)
_NEVER_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class TrainState:
    """What is saved beside weights and optimizer: the step, the number of the next version, the
    prompts in flight, the incarnation of the trainer, and what step and prompts count.
    """

    step: int = 0
    number: int = 0
    ledger: LedgerState | None = None
    incarnation: TrainerIncarnation | None = None
    data: DataIdentity | None = None  # of former releases there is none


class CheckpointedModel(Protocol):
    """What is saved: a training engine, or several models at once."""

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        """Copy what to save; returns what writes the copy to `path`. As TrainEngine's."""

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Restore what `path` holds; returns the caller's state. As TrainEngine's."""


class Checkpointer:
    """Saves every `everySteps` and resumes; without a configuration it does neither.

    `data` is saved with each state; a checkpoint of other data is refused, unless the configuration
    says otherwise. `pod_uid` is rank 0's: once another trainer has resumed from the same folder,
    `restore` raises FencedError there, and `check` does after a save.

    `restore`, `save` and `finish` are collective: all ranks call them at the same steps. A save
    that fails costs that checkpoint alone: `problem` says why, until a save succeeds, and
    `failures` counts. Weights that are not finite are not saved. `problem` also names a damaged
    checkpoint, or one of such weights, that was passed over. A save that is due while another one
    runs for PATIENCE_SECONDS more is skipped and counts as failed.
    """

    def __init__(
        self,
        config: CheckpointConfig | None,
        *,
        ranks: TrainerProcessGroup,
        pod_uid: str,
        data: DataIdentity | None = None,
    ) -> None:
        self._config, self._ranks, self._pod_uid = config, ranks, pod_uid
        self._data = data
        self._saved = 0
        self._running: _RunningSave | None = None
        self._fatal: BaseException | None = None
        self.failures = 0
        self.problem = ""
        if config is not None and config.every_steps < 1:
            raise SpecError("spec.trainer.checkpoint.everySteps", "must be at least 1")

    def due(self, step: int) -> bool:
        """Whether to save after `step`."""
        return self._config is not None and step % self._config.every_steps == 0

    def unsaved(self, step: int) -> bool:
        """Whether no checkpoint of `step` or a later one has been written."""
        return self._config is not None and step > self._saved

    def restore(self, model: CheckpointedModel) -> TrainState:
        """Continue from the newest whole checkpoint, or from the beginning.

        SpecError if that is another model's, of a form that the engine does not know, or of other
        data.
        """
        if self._config is None:
            return TrainState()
        root = Path(self._config.path)
        try:
            self._claim(root, self._ranks.gather)
        except OSError as error:
            log.warning("cannot claim the checkpoint folder %s: %s", root, error)
        path, damaged = _newest_whole(self._ranks, root)
        if damaged:
            resumed = path.name if path is not None else "the beginning"
            self.problem = f"{damaged}; training resumed from {resumed}"
        if path is None:
            return TrainState()
        try:
            state = decode(TrainState, model.load_checkpoint(path))
        except CodecError as error:
            problem = f"checkpoint {path} was not written by this release: {error}"
            raise SpecError(FIELD, f"{problem}; {_OTHER_CHECKPOINT}") from error
        except ValueError as error:
            raise SpecError(FIELD, f"{error}; {_OTHER_CHECKPOINT}") from error
        self._compare_data(path, state, self._config)
        self._saved = state.step
        log.info("resumed from %s", path)
        return state

    def _compare_data(self, path: Path, state: TrainState, config: CheckpointConfig) -> None:
        if self._data is None or state.data is None:
            return
        changes = self._data.changes_since(state.data)
        if not changes:
            return
        if config.other_data == CONTINUE:
            log.warning("%s counts rows of other data (%s) and is gone on with", path, changes)
            return
        problem = f"checkpoint {path} counts rows of other data: {changes}"
        advice = (
            "give the data that it had; or another volume, or an empty one, to begin again; or set "
            f"spec.trainer.checkpoint.otherData to {CONTINUE} (rollcall-train sft: --other-data "
            f"{CONTINUE}) to go on at step {state.step} with these"
        )
        raise SpecError("spec.data", f"{problem}; {advice}")

    def save(self, model: CheckpointedModel, state: TrainState) -> None:
        """Collective. Copy the state now and write it in a thread; failures show in `problem`."""
        if self._config is None:
            return
        self.check()
        running = self._running
        if running is not None and self._ranks.any(not self._ended(running)):
            seconds = time.monotonic() - running.began
            reason = f"the save of step {running.step} has run for {seconds:.0f} s"
            self._failed(state.step, f"{reason}; is the volume hung?")
            return
        path = files.checkpoint_path(Path(self._config.path), state.step)
        write = model.prepare_checkpoint(path, state=encode(replace(state, data=self._data)))
        thread = threading.Thread(
            target=self._write,
            args=(path, state.step, write),
            name="checkpoint",
            daemon=True,  # one that hangs must not keep the process
        )
        self._running = _RunningSave(state.step, time.monotonic(), thread)
        thread.start()

    def _ended(self, running: "_RunningSave") -> bool:
        """Whether the save has ended; waits for it the first time only."""
        running.thread.join(0.0 if running.late else PATIENCE_SECONDS)
        running.late = running.thread.is_alive()
        return not running.late

    def finish(self, model: CheckpointedModel, state: TrainState) -> None:
        """Collective. At the end of training: save `state` unless it is saved, and wait for it.

        Waits at most FINAL_SECONDS for a save that runs, and as long for the last one.
        """
        if self._config is None:
            return
        self.wait(FINAL_SECONDS)
        if self._ranks.any(self.unsaved(state.step)):
            self.save(model, state)
        running = self._running
        if running is not None and running.step == state.step and not self.wait(FINAL_SECONDS):
            self._failed(state.step, f"it was not written within {FINAL_SECONDS:.0f} s")
        self.check()

    def wait(self, seconds: float) -> bool:
        """Wait for the save that runs, if one does; False if it has not ended after `seconds`."""
        if self._running is None:
            return True
        self._running.thread.join(seconds)
        return not self._running.thread.is_alive()

    def check(self) -> None:
        """Raise what ended a save and must end training: FencedError, or SpecError.

        SpecError if the very first save fails because the folder cannot be written to.
        """
        if self._fatal is not None:
            raise self._fatal

    def _write(self, path: Path, step: int, write: Callable[[], None]) -> None:
        """Runs in the thread of a save."""
        root = path.parent
        try:
            self._claim(root, self._ranks.gather_for_checkpoint)
            write()
        except OSError as error:
            if self._saved == 0 and error.errno in _NEVER_WRITABLE:
                problem = f"cannot save to {str(root)!r}: {error}; is the volume writable?"
                self._fatal = SpecError(FIELD, problem)
                return
            self._failed(step, str(error))
            tidy = files.discard_scratch
        except NotFiniteError as error:  # the one before stays the newest
            self._failed(step, str(error))
            tidy = files.discard_scratch
        except Exception as error:  # the training thread raises it
            log.exception("the checkpoint of step %d was not saved", step)
            self._fatal = error
            return
        else:
            self._saved, self.problem = step, ""

            def tidy(root: Path) -> None:
                files.prune_checkpoints(root, keep=KEPT, newest=path)

        if self._ranks.rank == 0:
            _tidy(root, tidy)

    def _failed(self, step: int, reason: str) -> None:
        self.failures += 1
        self.problem = f"step {step} was not saved: {reason}"
        log.warning("%s; training continues, and the next save that is due is tried", self.problem)

    def _claim(self, root: Path, gather: Callable[[Any], list[Any]]) -> None:
        with raise_on_all_ranks(gather):
            if self._ranks.rank == 0:
                claim(root, self._pod_uid)


@dataclass(slots=True)
class _RunningSave:
    """A save and its thread; `began` is a time of time.monotonic, `late`: it was waited for."""

    step: int
    began: float
    thread: threading.Thread
    late: bool = False


def _tidy(root: Path, remove: Callable[[Path], None]) -> None:
    try:
        remove(root)
    except OSError as error:
        log.warning("cannot remove old checkpoints from %s: %s", root, error)


def _newest_whole(ranks: TrainerProcessGroup, root: Path) -> tuple[Path | None, str]:
    """Rank 0 lists the checkpoints, each rank checks its share of the files, and all agree.

    Also what is wrong with the newest one, if that is damaged.
    """
    found: list[str] = []
    if ranks.rank == 0:
        files.mend_checkpoints(root)
        _tidy(root, files.discard_scratch)  # a former trainer may still write there
        found = [path.name for path in files.list_checkpoints(root)]
    names: list[str] = ranks.broadcast_value(found)
    newest = ""
    for name in names:
        path = root / name
        problem = checkpoint_problem(path, part=ranks.rank, of=ranks.size)
        problems = [found for found in ranks.gather(problem) if found]
        if not problems:
            return path, newest
        log.warning("checkpoint %s is damaged and is skipped: %s", path, problems[0])
        newest = newest or f"checkpoint {name} is damaged ({problems[0]})"
    return None, newest
