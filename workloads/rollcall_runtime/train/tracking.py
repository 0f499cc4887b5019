"""Where the figures of each step go beside Prometheus and the log."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib import import_module
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from rollcall_runtime.train.history_file import HistoryFile
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollcall_protocol.job_config import JobConfig

log = logging.getLogger(__name__)

FIELD = "spec.tracking"
INIT_SECONDS = 60  # to reach Weights & Biases when training starts
WAITING_STEPS = 1000  # figures of more steps are dropped while a volume or a server hangs
CLOSE_SECONDS = 30.0


class FigureTracker(Protocol):
    """Takes the figures of steps. Belongs to one thread."""

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of `step`."""

    def close(self) -> None:
        """Write what is still held back."""


class TensorBoardTracker:
    """Event files in `folder`; what they have of steps from `first_step` on is replaced.

    SpecError without the package tensorboard, or if the folder cannot be written.
    """

    def __init__(self, folder: str, *, first_step: int) -> None:
        module = _import("torch.utils.tensorboard", "tensorboard", field=f"{FIELD}.folder")
        try:
            self._writer = module.SummaryWriter(folder, purge_step=first_step)
        except OSError as error:
            raise SpecError(f"{FIELD}.folder", f"cannot write to {folder!r}: {error}") from error

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A run of Weights & Biases with the job's uid, so that a restarted trainer continues it.

    The key and the mode come from the environment (WANDB_API_KEY, WANDB_MODE), as the package reads
    them. SpecError without the package, or if the run cannot be opened.
    """

    def __init__(self, job: JobConfig) -> None:
        field = f"{FIELD}.wandbProject"
        module = _import("wandb", "wandb", field=field)
        try:
            self._run = module.init(
                project=job.tracking.wandb_project,
                name=f"{job.namespace}/{job.job}",
                id=job.uid,
                resume="allow",
                settings=module.Settings(init_timeout=INIT_SECONDS),
            )
        except module.Error as error:
            raise SpecError(field, f"cannot open a run: {error}") from error
        # The package's own step only grows, but an evaluation ends some steps later.
        self._run.define_metric("*", step_metric="step")

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


class Tracking:
    """The file of the job's `history`, and the trackers that it asks for.

    `first_step`: the next that training makes.

    They work in a thread of their own: a volume or a server that hangs costs figures, and no
    training. SpecError if one cannot be opened.
    """

    def __init__(self, job: JobConfig, *, history: Path, first_step: int) -> None:
        trackers: list[FigureTracker] = [HistoryFile(history, first_step=first_step)]
        try:
            if job.tracking.folder:
                trackers.append(TensorBoardTracker(job.tracking.folder, first_step=first_step))
            if job.tracking.wandb_project:
                trackers.append(WandbTracker(job))
        except BaseException:
            _close(trackers)
            raise
        self._waiting: Queue[tuple[int, Mapping[str, float]] | None] = Queue(WAITING_STEPS)
        self._thread: Thread | None = Thread(
            target=self._run,
            args=(trackers,),
            name="tracking",
            daemon=True,  # one that hangs must not keep the process
        )
        self._thread.start()

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Have the figures of `step` written; dropped, and logged, if too many wait."""
        if self._thread is None:
            return
        try:
            self._waiting.put_nowait((step, figures))
        except Full:
            log.warning("the figures of step %d are dropped: tracking hangs", step)

    def close(self) -> None:
        """Have what waits written, for at most CLOSE_SECONDS; harmless twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(Full):  # then it hangs
            self._waiting.put(None, timeout=CLOSE_SECONDS)
            thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            log.warning("the last figures were not written: tracking hangs")

    def _run(self, trackers: list[FigureTracker]) -> None:
        while (item := self._waiting.get()) is not None:
            for tracker in trackers:
                try:
                    tracker.record(*item)
                except Exception:  # the packages may raise anything; training goes on
                    log.exception("the figures of step %d were not written", item[0])
        _close(trackers)


def _close(trackers: list[FigureTracker]) -> None:
    for tracker in trackers:
        tracker.close()


def _import(module: str, package: str, *, field: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        problem = f"needs the package {package}, which the worker's image does not have"
        raise SpecError(field, f"{problem}: {error}") from error
