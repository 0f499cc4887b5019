"""Models beside the policy: reference, critic and reward model."""

from typing import Annotated, ClassVar

from pydantic import Field

from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import Amount, Device, LearningRate, ModelPath
from rollcall_operator.api.template import PodTemplate

_Steps = Annotated[int, Field(ge=0, le=1_000_000)]


class ReferenceSpec(Model):
    """The model that a KL term keeps the policy near to: algorithm.settings.klCoefficient. The
    trainer computes it, unless `template` gives it pods of its own.
    """

    # An API server checks the default {} before it fills in what is below.
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be 0 with template: pods of their own do not take the policy's weights; "
            "set it to 0, or remove template",
            cel="!has(self.template) || !has(self.updateEvery) || self.updateEvery == 0",
            holds=lambda r: r.template is None or r.update_every == 0,
            path=".updateEvery",
        ),
        Rule(
            message="has no effect without template: the trainer computes the reference; add "
            "template, or remove replicas",
            cel="has(self.template) || !has(self.replicas) || self.replicas == 1",
            holds=lambda r: r.template is not None or r.replicas == 1,
            path=".replicas",
        ),
        Rule(
            message="has no effect without template: the trainer computes the reference; add "
            "template, or remove device",
            cel="has(self.template) || !has(self.device) || self.device == 'auto'",
            holds=lambda r: r.template is not None or r.device == "auto",
            path=".device",
        ),
    )

    path: ModelPath | None = None
    """Its weights, as in spec.model.path. Unset: the job's own model."""
    update_every: _Steps = 0
    """Number of steps after which the reference takes the policy's weights. 0: it keeps its own."""
    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of pods, each with the whole model; the trainer spreads its requests over them."""
    device: Device = "auto"
    """As for the trainer. Each pod computes on one device."""
    template: PodTemplate | None = None
    """Template of pods of its own, which the trainer asks. The container named `reference`, or the
    only one, is the worker; the operator adds its environment, ports, volumes, probes and security
    context. Unset: the trainer computes the reference, in its own memory."""


class CriticSpec(Model):
    """The model that values tokens: algorithm.settings.baseline critic."""

    path: ModelPath | None = None
    """Its initial weights, as in spec.model.path. Unset: the job's own model."""
    learning_rate: LearningRate | None = None
    """Learning rate, as a decimal string. Unset: 1e-5, and 1e-3 for a job whose model's path begins
    with builtin:."""
    warmup_steps: _Steps = 0
    """Number of steps at the start in which only the critic is trained."""


class RewardModelSpec(Model):
    """A model that scores samples; its score is added to the reward function's."""

    path: ModelPath
    """Its weights, as in spec.model.path."""
    weight: Amount = "1"
    """Factor of its score, as a decimal string."""
