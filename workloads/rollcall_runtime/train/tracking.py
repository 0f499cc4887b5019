"""Where the figures of each step go beside Prometheus and the log."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib import import_module
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from rollcall_protocol.sample_record import expanded
from rollcall_runtime.train.samples.sampled_step import SampledStep
from rollcall_runtime.train.samples.samples_file import SamplesFile
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.history_file import HistoryFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rollcall_protocol.job_config import JobConfig
    from rollcall_protocol.sample_record import SampleRecord
    from rollcall_runtime.train.samples.sampled_step import SampleDescriber

log = logging.getLogger(__name__)

FIELD = "spec.tracking"
INIT_SECONDS = 60  # to reach Weights & Biases when training starts
WAITING_STEPS = 1000  # figures of more steps are dropped while a volume or a server hangs
WAITING_SAMPLES = 20  # recorded responses of steps that wait behind more items are dropped
SHOWN_SAMPLES = 16  # of a step, in TensorBoard and Weights & Biases
CLOSE_SECONDS = 30.0
_COLUMNS = ("step", "prompt", "sample", "reward", "advantage", "ended", "prompt text", "response")


class FigureTracker(Protocol):
    """Takes the figures of steps. Belongs to one thread."""

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of `step`."""

    def close(self) -> None:
        """Write what is still held back."""


class SampleTracker(Protocol):
    """Takes recorded responses. Belongs to one thread."""

    def record_samples(self, step: int, records: Sequence[SampleRecord]) -> None:
        """Write the responses of `step`."""

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

    def record_samples(self, step: int, records: Sequence[SampleRecord]) -> None:
        text = "\n\n".join(_as_markdown(record) for record in records[:SHOWN_SAMPLES])
        self._writer.add_text("samples", text, step)

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
        self._table = module.Table
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

    def record_samples(self, step: int, records: Sequence[SampleRecord]) -> None:
        rows = [_as_row(record) for record in records[:SHOWN_SAMPLES]]
        self._run.log({"step": step, "samples": self._table(columns=list(_COLUMNS), data=rows)})

    def close(self) -> None:
        self._run.finish()


class Tracking:
    """The file of the job's `history`, and the trackers that it asks for.

    `first_step`: the next that training makes. With `describe` recorded responses go to the file
    `samples`, and to the trackers.

    They work in a thread of their own: a volume or a server that hangs costs figures, and no
    training. SpecError if one cannot be opened.
    """

    def __init__(
        self,
        job: JobConfig,
        *,
        history: Path,
        first_step: int,
        samples: Path | None = None,
        describe: SampleDescriber | None = None,
    ) -> None:
        packages: list[TensorBoardTracker | WandbTracker] = []
        try:
            if job.tracking.folder:
                packages.append(TensorBoardTracker(job.tracking.folder, first_step=first_step))
            if job.tracking.wandb_project:
                packages.append(WandbTracker(job))
        except BaseException:
            _close(packages)
            raise
        self._describe = describe
        self._figures = [HistoryFile(history, first_step=first_step), *packages]
        self._samples: list[SampleTracker] = [*packages]
        if samples is not None:
            self._samples.append(SamplesFile(samples, first_step=first_step))
        self._waiting: Queue[tuple[int, Mapping[str, float] | SampledStep] | None]
        self._waiting = Queue(WAITING_STEPS)
        self._thread: Thread | None = Thread(
            target=self._run,
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

    def record_samples(self, sampled: SampledStep) -> None:
        """Have responses written; dropped, and logged, if too much waits."""
        if self._thread is None:
            return
        if self._waiting.qsize() < WAITING_SAMPLES:
            self._waiting.put_nowait((sampled.step, sampled))
        else:
            log.warning("the responses of step %d are dropped: tracking hangs", sampled.step)

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

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            step, content = item
            if isinstance(content, SampledStep):
                self._write_samples(content)
                continue
            for tracker in self._figures:
                try:
                    tracker.record(step, content)
                except Exception:  # the packages may raise anything; training goes on
                    log.exception("the figures of step %d were not written", step)
        _close(dict.fromkeys([*self._figures, *self._samples]))

    def _write_samples(self, sampled: SampledStep) -> None:
        text = "the responses of step %d were not written"
        try:
            records = self._describe.describe(sampled) if self._describe is not None else []
        except Exception:  # whatever the tokenizer's library raises
            log.exception(text, sampled.step)
            return
        for tracker in self._samples if records else ():
            try:
                tracker.record_samples(sampled.step, records)
            except Exception:  # as above
                log.exception(text, sampled.step)


def _close(trackers: Iterable[FigureTracker | SampleTracker]) -> None:
    for tracker in trackers:
        tracker.close()


def _as_row(record: SampleRecord) -> list[Any]:
    """In the order of _COLUMNS."""
    return [
        *(record.step, record.prompt, record.sample, record.reward, _mean_advantage(record)),
        *(record.ended, record.prompt_text, record.response),
    ]


def _as_markdown(record: SampleRecord) -> str:
    """Texts as blocks of code: a line that is indented is no markup."""
    said = zip(_COLUMNS[1:6], _as_row(record)[1:6], strict=True)
    words = ", ".join(f"{name} {value}" for name, value in said)
    blocks = "\n\n".join(_indented(text) for text in (record.prompt_text, record.response))
    return f"{words}\n\n{blocks}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _mean_advantage(record: SampleRecord) -> float:
    every = expanded(record.advantages)
    return round(sum(every) / len(every), 6) if every else 0.0


def _import(module: str, package: str, *, field: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        problem = f"needs the package {package}, which the worker's image does not have"
        advice = "leave it out, or use an image with it"
        raise SpecError(field, f"{problem} ({error}); {advice}") from error
