"""What a loss is to a training engine: a function of model outputs and a batch, and a denominator.

The engine cuts a batch into micro-batches and ranks, so a loss returns sums, and says beforehand by
what their total is divided. Then accumulation, packing and data parallelism change no result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What the head of a model gives for a TrainBatch, in float32; None where the head has none.

    `logprobs` [rows, length]: of the targets (head language-model). `entropy` [rows, length]: of
    the distribution that the target comes from, in nats, if the loss asks for it. `values` [rows,
    length]: head value. `scores` [rows]: head sequence-classification, at the last token of each
    row. Entries where `mask` is false are finite and mean nothing.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    scores: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over rows and positions of a micro-batch.

    `loss` carries the gradient and is divided by the total of `LossFunction.denominator`. `metrics`
    are detached; each is a (sum, count) pair, so that micro-batches and ranks can be added up
    before they are divided. `maxima` are detached, and the largest of all is reported.
    """

    loss: Tensor
    metrics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


class LossFunction(Protocol):
    """A loss over model outputs. The same `metrics` and `maxima` come from every micro-batch."""

    @property
    def needs_entropy(self) -> bool:
        """Whether `ModelOutput.entropy` is read."""

    def denominator(self, batch: TrainBatch) -> Tensor:
        """What `batch` adds to the divisor of the loss: tokens, rows, or a constant for each.

        A scalar. The engine adds up all micro-batches and ranks; a total of 0 counts as 1.
        """

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums: ...
