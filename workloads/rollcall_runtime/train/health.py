"""Watches what training measures: steps that had to be skipped, rollouts that compute otherwise.

A step whose loss or gradient is not finite leaves the weights as they are. It is counted, and its
batch is written down; when many follow one another, training ends.
"""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from rollcall_protocol.job_config import CheckpointConfig, HealthConfig
from rollcall_runtime.models.tensor_file import write_tensors
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

FIELD = "spec.health"
FOLDER = "skipped-steps"
POLICY_ADVICE = (
    "lower spec.algorithm.optimizer.learningRate, or see whether rewards and log-probabilities are "
    "sound"
)
SUPERVISED_ADVICE = "lower spec.supervised.learningRate, or see whether the model's files are sound"
KEPT_BATCHES = 5  # of each rank; the first ones show what went wrong

MISMATCH_KL, MISMATCH_RATIO = "mismatch_kl", "mismatch_ratio"


def skipped_steps(checkpoint: CheckpointConfig | None) -> Path | None:
    """Where batches of skipped steps go; without checkpoints there is no volume for them."""
    return Path(checkpoint.path) / FOLDER if checkpoint is not None else None


class TrainingHealth:
    """Of one rank. All ranks see the same figures, so all of them end at the same step.

    `folder` is where batches of skipped steps go; None: nowhere. `advice` is what to do about many
    in a row. `skipped` counts them. `problem` is what a person should look at, or "".
    """

    def __init__(
        self,
        config: HealthConfig,
        *,
        folder: Path | None,
        rank: int,
        advice: str = POLICY_ADVICE,
    ) -> None:
        self._config, self._folder, self._rank, self._advice = config, folder, rank, advice
        self._in_row = 0
        self.skipped = 0
        self.problem = ""

    def step_ended(self, step: int, updates: Sequence[ModelUpdate], batch: TrainBatch) -> None:
        """Take the figures of `step` and the batch it was computed from (this rank's rows).

        SpecError after `max_skipped_steps` in a row that were skipped.
        """
        if not any(update.skipped == "not-finite" for update in updates):
            self._in_row = 0
            self.problem = self._mismatch(step, updates)
            return
        self.skipped += 1
        self._in_row += 1
        self.problem = f"step {step} was skipped: its loss or gradient is not finite"
        log.warning("%s: %s", self.problem, _figures(updates))
        self._write(step, updates, batch)
        if self._in_row >= self._config.max_skipped_steps:
            raise SpecError(f"{FIELD}.maxSkippedSteps", self._reason_to_end(step))

    def _reason_to_end(self, step: int) -> str:
        kept = f"; the batches are in {self._folder}" if self._folder is not None else ""
        return (
            f"the last {self._in_row} steps, up to step {step}, were skipped, because loss or "
            f"gradient is not finite: {self._advice}{kept}"
        )

    def _mismatch(self, step: int, updates: Sequence[ModelUpdate]) -> str:
        """What rollouts and trainer disagree about, if it is more than the settings allow.

        The first update alone is looked at: for later ones the trainer's policy has changed.
        """
        metrics = updates[0].metrics if updates else {}
        limits = {
            MISMATCH_KL: ("maxMismatchKl", self._config.max_mismatch_kl),
            MISMATCH_RATIO: ("maxMismatchRatio", self._config.max_mismatch_ratio),
        }
        for name, (setting, limit) in limits.items():
            found = metrics.get(name, 0.0)
            if limit and not found <= limit:
                problem = (
                    f"rollouts and trainer give other probabilities to the same tokens: {name} is "
                    f"{found:.3g} at step {step}, and {FIELD}.{setting} is {limit:g}"
                )
                log.warning("%s", problem)
                return problem
        return ""

    def _write(self, step: int, updates: Sequence[ModelUpdate], batch: TrainBatch) -> None:
        """A failure costs the copy alone: it must not end training."""
        if self._folder is None:
            return
        path = self._folder / f"step-{step:08d}-rank-{self._rank}.safetensors"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if len(list(self._folder.glob(f"*-rank-{self._rank}.safetensors"))) >= KEPT_BATCHES:
                return
            write_tensors({name: t.contiguous() for name, t in _tensors(batch).items()}, path)
            figures = json.dumps(_figures(updates), indent=2)
            path.with_suffix(".json").write_text(figures + "\n", encoding="utf-8")
        except OSError as error:
            log.warning("cannot write the batch of step %d to %s: %s", step, path, error)


def _tensors(batch: TrainBatch) -> dict[str, Tensor]:
    plain = {
        "tokens": batch.tokens,
        "targets": batch.targets,
        "mask": batch.mask,
        "lengths": batch.lengths,
    }
    return plain | {f"extras.{name}": tensor for name, tensor in batch.extras.items()}


def _figures(updates: Sequence[ModelUpdate]) -> list[dict[str, object]]:
    """As JSON values, where what is not finite is a word."""
    return [
        {
            "loss": _number(update.loss),
            "gradient_norm": _number(update.gradient_norm),
            "learning_rate": update.learning_rate,
            "skipped": update.skipped,
            "metrics": {name: _number(value) for name, value in update.metrics.items()},
        }
        for update in updates
    ]


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
