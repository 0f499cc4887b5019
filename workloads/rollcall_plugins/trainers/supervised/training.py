"""Supervised training on any engine: batches in, optimizer steps, evaluation, checkpoints."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rollcall_runtime.train.algorithms.supervised_loss import SupervisedLoss
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.roles.model_update import update_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollcall_plugins.trainers.supervised.batches import SupervisedBatches
    from rollcall_protocol.supervised_config import SupervisedConfig
    from rollcall_runtime.train.health import TrainingHealth
    from rollcall_runtime.train.process_group import TrainerProcessGroup
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """One optimizer step. `loss` is the mean over `tokens`, in nats; `seconds` of wall time.

    `evaluation_loss`: of the rows that are not learnt, after this step; None if not measured.
    `skipped` says why the weights stayed, `warning` is what a person should look at, or "".
    """

    step: int
    steps: int
    loss: float
    tokens: int
    gradient_norm: float
    learning_rate: float
    seconds: float
    skipped: str = ""
    evaluation_loss: float | None = None
    warning: str = ""


class SupervisedTraining:
    """One rank; the caller frees `engine`. The loss of `held_out`, if there is any, is measured."""

    def __init__(
        self,
        *,
        ranks: TrainerProcessGroup,
        engine: TrainEngine,
        batches: SupervisedBatches,
        held_out: SupervisedBatches | None,
        config: SupervisedConfig,
        checkpoints: Checkpointer,
        health: TrainingHealth,
    ) -> None:
        self._ranks, self._engine, self._health = ranks, engine, health
        self._held_out = held_out
        self._config, self._checkpoints = config, checkpoints
        self._loss = SupervisedLoss()
        self.batches = batches
        self.step = 0
        self.steps = config.steps(len(batches.rows))

    @property
    def over(self) -> bool:
        """Whether all steps were made."""
        return self.step >= self.steps

    def start(self) -> None:
        """Collective. Build the model, and resume from a checkpoint, if there is one."""
        self._engine.initialize()
        self.step = self._checkpoints.restore(self._engine).step

    def run(self, report: Callable[[SupervisedStep], None], stop: Callable[[], bool]) -> None:
        """Collective. Train to the end, or until `stop` is True on any rank, and save the state.

        `report` is called after each step. SpecError if too many steps in a row were skipped.
        """
        for batch in self.batches.ahead(range(self.step, self.steps)):
            if self._ranks.any(stop()):
                break
            done = self._train(batch)
            report(done)
            self._checkpoints.check()
            if self._checkpoints.due(self.step):
                self._checkpoints.save(self._engine, TrainState(step=self.step))
        self._checkpoints.finish(self._engine, TrainState(step=self.step))

    def evaluate(self) -> float:
        """Collective. Mean loss, in nats, of the tokens of the rows that are not learnt."""
        if self._held_out is None:
            raise ValueError("there are no rows to evaluate")
        sums = torch.zeros(2, dtype=torch.float64)
        with self._engine.eval_mode():
            for whole in self._held_out.once():
                batch = rows_of(self._engine, whole)
                logprobs = self._engine.forward(batch).logprobs
                if logprobs is None:
                    raise ValueError("the model has no head that predicts tokens")
                learnt = torch.where(batch.mask, logprobs.to(batch.mask.device), 0.0)
                sums += torch.stack([-learnt.sum().double(), batch.mask.sum().double()])
        if self._engine.data_parallel_size > 1:
            dist.all_reduce(sums, group=self._engine.data_parallel_group)
        return float(sums[0] / sums[1].clamp(min=1))

    def _train(self, batch: TrainBatch) -> SupervisedStep:
        began = time.perf_counter()
        (update,) = update_model(self._engine, [rows_of(self._engine, batch)], self._loss)
        self.step += 1
        seconds = time.perf_counter() - began
        self._health.step_ended(self.step, [update], batch)
        problems = (self._checkpoints.problem, self._health.problem)
        return SupervisedStep(
            step=self.step,
            steps=self.steps,
            loss=update.loss,
            tokens=update.tokens,
            gradient_norm=update.gradient_norm,
            learning_rate=update.learning_rate,
            seconds=seconds,
            skipped=update.skipped,
            evaluation_loss=self.evaluate() if self._evaluation_due() else None,
            warning="; ".join(filter(None, problems)),
        )

    def _evaluation_due(self) -> bool:
        every = self._config.evaluate_every
        return self._held_out is not None and (
            self.step == self.steps or bool(every and self.step % every == 0)
        )


def supervised_figures(step: SupervisedStep) -> dict[str, float]:
    """What a step of supervised training measured; what is not finite is left out."""
    figures = {
        "train/loss": step.loss,
        "train/grad_norm": step.gradient_norm,
        "train/lr": step.learning_rate,
        "train/tokens": float(step.tokens),
        "timing_s/step": step.seconds,
    }
    if step.evaluation_loss is not None:
        figures["val/loss"] = step.evaluation_loss
    return {name: value for name, value in figures.items() if math.isfinite(value)}
