"""What is measured and kept while a job trains: health, evaluation, tracking, samples."""

from typing import Annotated, ClassVar

from pydantic import Field

from rollcall_operator.api.data import RowsSpec
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import Amount, Count, Folder, Ratio, Share
from rollcall_operator.api.training import nested


class HealthSpec(Model):
    """When training ends, or warns, because its figures are wrong."""

    max_skipped_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """The job fails after so many steps in a row whose loss or gradient is not finite."""
    max_mismatch_kl: Amount = "0"
    """Warn when the divergence between the probabilities that rollouts and trainer give to the
    same tokens with the same weights is higher (k3, in nats for each token; a decimal string). 0:
    never."""
    max_mismatch_ratio: Amount = "0"
    """Warn when the ratio of these probabilities is higher for any token; a decimal string. 0:
    never."""


class EvaluationSpec(Model):
    """How good the rollouts' answers to held-out prompts are."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be at most samples; raise samples, or leave it out",
            cel="self.passAt.all(k, k <= self.samples)",
            holds=lambda e: all(k <= e.samples for k in e.pass_at),
            path=".passAt",
        ),
    )

    every_steps: Count
    """Number of optimizer steps between two evaluations."""
    source: RowsSpec
    """Held-out prompts; spec.data bounds their length, too."""
    prompts: Count = 64
    """Number of prompts that are answered each time: the first of the source."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 4
    """Number of answers to each prompt."""
    pass_at: Annotated[
        list[Annotated[int, Field(ge=1, le=1024)]],
        Field(
            default=[1],
            min_length=1,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    """Each k of which pass@k is reported."""
    pass_reward: Ratio = "1"  # noqa: S105 - a number
    """Reward from which on an answer has passed; a decimal string."""


class TrackingSpec(Model):
    """Where the figures of each step go, beside Prometheus and the log."""

    folder: Folder | None = None
    """Directory in the trainer's container that gets event files for TensorBoard."""
    wandb_project: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Project of Weights & Biases; the container's environment has the key (WANDB_API_KEY)."""


class SamplesSpec(Model):
    """Which responses the trainer keeps for people to look at (`rollcall samples`).

    A supervised job has none.
    """

    share: Share = "0.05"
    """Share of the groups of each step that is kept, chosen by step and prompt; a decimal string.
    0: none."""
    all_every_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """All groups of a step are kept if this divides its number. 0: of no step."""


class ObserveSpec(Model):
    """What the trainer keeps of the job for people to look at."""

    samples: SamplesSpec = nested(SamplesSpec)
