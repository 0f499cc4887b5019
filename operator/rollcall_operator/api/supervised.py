"""Supervised fine-tuning: a job that learns the answers in its data."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.data import RowsSpec
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import Count, LearningRate

_Steps = Annotated[int, Field(ge=0, le=1_000_000_000)]


class HeldOutSpec(Model):
    """Rows that are not learnt, and when their loss is measured."""

    source: RowsSpec
    """Where these rows come from; spec.data bounds their length, too."""
    every_steps: _Steps = 0
    """Number of optimizer steps between two measurements. 0: at the end alone."""


class SupervisedSpec(Model):
    """Training without rollouts and reward; the answers are in the data."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        # Stored jobs have epochs: 1, once a default.
        Rule(
            message="must not be given beside epochs above 1: either ends the job",
            cel="!has(self.epochs) || self.epochs == 1 || self.maxSteps == 0",
            holds=lambda s: s.epochs in {None, 1} or s.max_steps == 0,
            path=".maxSteps",
        ),
    )

    optimizer: Literal["adamw"] = "adamw"
    """Name of the optimizer."""
    learning_rate: LearningRate = "1e-5"
    """Learning rate, as a decimal string. Its schedule is a setting of the training engine."""
    rows_per_step: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    """Number of rows for each optimizer step, of all ranks together. The last step of a pass has
    what is left."""
    epochs: Count | None = None
    """Number of passes over the rows, after which the job succeeds. 1 without maxSteps."""
    max_steps: _Steps = 0
    """In place of epochs: number of optimizer steps after which the job succeeds. 0: none is
    set."""
    evaluation: HeldOutSpec | None = None
    """The loss of held-out rows is measured, and logged."""
