"""Where the figures of each step go beside Prometheus and the log."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_protocol.job_config import JobConfig

FIELD = "spec.tracking"
INIT_SECONDS = 60  # to reach Weights & Biases when training starts


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

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


class Tracking:
    """All that a job asks for. `first_step`: the step that training resumes from.

    A tracker that cannot be opened closes those before it.
    """

    def __init__(self, job: JobConfig, *, first_step: int) -> None:
        self._trackers: list[FigureTracker] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            if job.tracking.folder:
                self._trackers.append(
                    TensorBoardTracker(job.tracking.folder, first_step=first_step)
                )
            if job.tracking.wandb_project:
                self._trackers.append(WandbTracker(job))
            undo.pop_all()

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Give the figures of `step` to all."""
        for tracker in self._trackers:
            tracker.record(step, figures)

    def close(self) -> None:
        """Write what is still held back; harmless twice."""
        while self._trackers:
            self._trackers.pop().close()


def _import(module: str, package: str, *, field: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        problem = f"needs the package {package}, which the worker's image does not have"
        raise SpecError(field, f"{problem}: {error}") from error
