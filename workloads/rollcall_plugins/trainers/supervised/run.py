"""One rank of supervised training, from its configuration to the exported model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_plugins.trainers.supervised.batches import RowCounts, SupervisedBatches
from rollcall_plugins.trainers.supervised.training import SupervisedStep, SupervisedTraining
from rollcall_protocol.job_config import (
    CheckpointConfig,
    EngineRef,
    HealthConfig,
    OptimizerConfig,
)
from rollcall_runtime.data.data_identity import identity_of
from rollcall_runtime.data.model_input import ModelInput
from rollcall_runtime.data.supervised_rows import open_supervised
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer
from rollcall_runtime.train.engine_configuration import split_config
from rollcall_runtime.train.final_export import FinalExport
from rollcall_runtime.train.health import SUPERVISED_ADVICE, TrainingHealth, skipped_steps
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous
from rollcall_runtime.train.train_engine import EngineSetup, train_engines

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollcall_protocol.data_config import DataConfig
    from rollcall_protocol.supervised_config import SupervisedConfig
    from rollcall_protocol.train_settings import EngineSettings

HELD_OUT = "spec.supervised.evaluation.source.name"
CLOSE_SECONDS = 5.0  # to wait for a save before the engine is freed


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """What to train. `trainer` is who writes checkpoints; the last one that resumed may."""

    model: str
    data: DataConfig
    config: SupervisedConfig
    engine: EngineRef
    checkpoint: CheckpointConfig | None
    trainer: str
    health: HealthConfig = HealthConfig()  # noqa: RUF009 - frozen
    deterministic: bool = False
    export_path: str = ""


@dataclass(frozen=True, slots=True)
class SupervisedStart:
    """Where training begins or goes on: after `step` of `steps`."""

    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class SupervisedResult:
    """`finished`: all steps were made, and the model was exported if a folder was given."""

    step: int
    finished: bool
    counts: RowCounts


class SupervisedRank:
    """One rank on a `device` (torch's name of its type). Methods block; one thread calls them."""

    def __init__(self, job: SupervisedJob, rendezvous: TrainerRendezvous, device: str) -> None:
        self._job, self._rendezvous, self._device = job, rendezvous, device
        self._owned = ExitStack()
        self._checkpoints: Checkpointer | None = None

    def start(self) -> SupervisedStart:
        """Collective. Check and build everything, and resume from a checkpoint, if there is one.

        SpecError names the field that is wrong.
        """
        job = self._job
        model = ModelInput.of(open_model(job.model))
        batches = self._batches(job.data, model)
        held_out = job.config.evaluation
        settings, own = self._settings(len(batches.rows))
        make_engine = train_engines.get(job.engine.name)
        held = None if held_out is None else self._batches(held_out, model, field=HELD_OUT)
        ranks = TrainerProcessGroup(self._rendezvous, device=self._device)
        self._owned.callback(ranks.close)
        self._engine = make_engine(
            EngineSetup(
                model=job.model,
                ranks=ranks,
                optimizer=OptimizerConfig(job.config.optimizer, job.config.learning_rate),
                settings=settings,
                own_settings=own,
                seed=job.data.seed,
                deterministic=job.deterministic,
            )
        )
        self._owned.callback(self._engine.close)
        self._checkpoints = Checkpointer(
            job.checkpoint,
            ranks=ranks,
            pod_uid=job.trainer,
            data=identity_of(
                job.data, batches.rows.readers, rows_per_step=job.config.rows_per_step
            ),
        )
        training = SupervisedTraining(
            ranks=ranks,
            engine=self._engine,
            batches=batches,
            held_out=held,
            config=job.config,
            checkpoints=self._checkpoints,
            health=TrainingHealth(
                job.health,
                folder=skipped_steps(job.checkpoint),
                rank=ranks.rank,
                advice=SUPERVISED_ADVICE,
            ),
        )
        training.start()
        self._export = FinalExport(job.export_path, last_step=training.steps, ranks=ranks)
        self._export.check(training.step)
        self._training = training
        return SupervisedStart(training.step, training.steps)

    def run(
        self, report: Callable[[SupervisedStep], None], stop: Callable[[], bool]
    ) -> SupervisedResult:
        """Collective, after `start`. Train until the end, or until `stop` is True on any rank; then
        export.

        SpecError names the field that is wrong; OSError if the model cannot be written.
        """
        training = self._training
        training.run(report, stop)
        self._export.write(self._engine, training.step)
        return SupervisedResult(training.step, training.over, training.batches.counts)

    def close(self) -> None:
        """Free everything, unless a save that hangs still uses it; harmless twice."""
        if self._checkpoints is None or self._checkpoints.wait(CLOSE_SECONDS):
            self._owned.close()

    def _batches(
        self, data: DataConfig, model: ModelInput, *, field: str = ""
    ) -> SupervisedBatches:
        rows = open_supervised(data, model=model, field=field)
        self._owned.callback(rows.close)
        return SupervisedBatches(rows, self._job.config.rows_per_step)

    def _settings(self, rows: int) -> tuple[EngineSettings, dict[str, Any]]:
        """The engine's settings, and those of its own; a schedule ends with training by default."""
        config = dict(self._job.engine.config)
        if config.get("schedule", "constant") != "constant":
            warmup = config.get("warmupSteps")
            rest = self._job.config.steps(rows) - (warmup if isinstance(warmup, int) else 0)
            config.setdefault("decaySteps", max(1, rest))
        return split_config(config)
