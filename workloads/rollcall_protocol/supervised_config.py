"""Supervised training: `spec.supervised`, as the trainer reads it."""

from dataclasses import dataclass

from rollcall_protocol.data_config import DataConfig
from rollcall_protocol.train_settings import MAX_LEARNING_RATE


@dataclass(frozen=True, slots=True)
class SupervisedConfig:
    """A job that learns the answers in its data, without rollouts and reward.

    `optimizer` by name. `rows_per_step`: rows of each optimizer step, of all ranks together; the
    last step of a pass has what is left. Training ends after `max_steps` steps or, in their place,
    after `epochs` passes over the rows; where both are 0, after one pass. `evaluation`: rows that
    are not learnt, whose loss is measured every `evaluate_every` steps (0: at the end alone).
    """

    optimizer: str = "adamw"
    learning_rate: float = 1e-5
    rows_per_step: int = 32
    epochs: int = 0
    max_steps: int = 0
    evaluation: DataConfig | None = None
    evaluate_every: int = 0

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        if self.rows_per_step < 1 or self.epochs < 0:
            raise ValueError("rowsPerStep must be at least 1, and epochs at least 0")
        if self.epochs > 1 and self.max_steps:  # stored jobs have 1, once a default
            raise ValueError("maxSteps and epochs are both given; either ends the job, give one")
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:
            bounds = f"above 0 and at most {MAX_LEARNING_RATE:g}"
            raise ValueError(f"learningRate must be {bounds}, not {self.learning_rate:g}")
        if self.max_steps < 0 or self.evaluate_every < 0:
            raise ValueError("maxSteps and evaluateEvery must be at least 0")

    def steps(self, rows: int) -> int:
        """How many optimizer steps training has, with that many rows."""
        return self.max_steps or (self.epochs or 1) * -(-rows // self.rows_per_step)
