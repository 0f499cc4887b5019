"""Models beside the policy: reference, critic and reward model."""

from typing import Annotated

from pydantic import Field

from rollcall_operator.api.rules import Model
from rollcall_operator.api.scalars import Amount, LearningRate, ModelPath

_Steps = Annotated[int, Field(ge=0, le=1_000_000)]


class ReferenceSpec(Model):
    """The model that a KL term keeps the policy near to: algorithm.settings.klCoefficient."""

    path: ModelPath | None = None
    """Its weights, as in spec.model.path. Unset: the job's own model."""
    update_every: _Steps = 0
    """Number of steps after which it takes the policy's weights. 0: it stays as it is."""


class CriticSpec(Model):
    """The model that values tokens: algorithm.settings.baseline critic."""

    path: ModelPath | None = None
    """Its initial weights, as in spec.model.path. Unset: the job's own model."""
    learning_rate: LearningRate = "1e-3"
    """Learning rate, as a decimal string."""
    warmup_steps: _Steps = 0
    """Number of steps at the start in which only the critic is trained."""


class RewardModelSpec(Model):
    """A model that scores samples; its score is added to the reward function's."""

    path: ModelPath
    """Its weights, as in spec.model.path."""
    weight: Amount = "1"
    """Factor of its score, as a decimal string."""
