"""A training engine whose model is a table: what follows a token depends on that token alone.

So a test can compute by hand what roles do with it.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.models.model_source import Head
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import (
    BatchResult,
    EngineSetup,
    OptimizerStep,
    TrainEngine,
    WeightInfo,
    WeightShard,
)
from rollcall_runtime.train.train_loss import LossFunction, ModelOutput

VOCABULARY = 5


class BigramEngine(TrainEngine):
    """One rank, plain SGD; `forwards` counts rows that were evaluated."""

    settings_known = frozenset()
    devices = frozenset({"cpu"})
    heads = frozenset({"language-model", "value", "sequence-classification"})

    def __init__(self, *, head: Head = "language-model", learning_rate: float = 1.0) -> None:
        ranks = cast("Any", SimpleNamespace(rank=0, size=1))
        optimizer = OptimizerConfig("sgd", learning_rate)
        super().__init__(EngineSetup(model="bigram", ranks=ranks, optimizer=optimizer, head=head))
        columns = VOCABULARY if head == "language-model" else 1
        self.table = nn.Parameter(torch.zeros(VOCABULARY, columns))
        self.forwards = 0
        self.batches: list[TrainBatch] = []
        self._rate = learning_rate

    def initialize(self) -> None:
        """The table is there from the start."""

    def close(self) -> None:
        """Nothing to free."""

    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        """There is one kind of memory."""

    def _set_training(self, training: bool) -> bool:
        return training

    def _output(self, batch: TrainBatch) -> ModelOutput:
        found = self.table[batch.tokens]
        if self.setup.head == "value":
            return ModelOutput(values=found[..., 0])
        if self.setup.head == "sequence-classification":
            last = batch.tokens.gather(1, (batch.lengths - 1)[:, None])
            return ModelOutput(scores=self.table[last][:, 0, 0])
        logprobs = found.log_softmax(-1)
        return ModelOutput(
            logprobs=logprobs.gather(-1, batch.targets[..., None])[..., 0],
            entropy=-(logprobs.exp() * logprobs).sum(-1),
        )

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        self.batches.append(batch)
        sums = loss(self._output(batch), batch)
        denominator = float(loss.denominator(batch)) or 1.0
        (sums.loss / denominator).backward()  # type: ignore[no-untyped-call]
        means = {
            name: float(total) / max(float(count), 1)
            for name, (total, count) in sums.metrics.items()
        }
        maxima = {name: float(value) for name, value in sums.maxima.items()}
        value = float(sums.loss.detach()) / denominator
        return BatchResult(value, denominator, int(batch.mask.sum()), means | maxima)

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        self.forwards += batch.rows
        with torch.no_grad():
            return self._output(batch)

    def optimizer_step(self) -> OptimizerStep:
        gradient = self.table.grad
        assert gradient is not None
        norm = float(gradient.norm())
        if not torch.isfinite(gradient).all():
            self.zero_grad()
            return OptimizerStep(norm, self._rate, "not-finite")
        with torch.no_grad():
            self.table.sub_(self._rate * gradient)
        self.zero_grad()
        return OptimizerStep(norm, self._rate)

    def zero_grad(self) -> None:
        self.table.grad = None

    @property
    def learning_rate(self) -> float:
        return self._rate

    def weight_info(self) -> list[WeightInfo]:
        return [WeightInfo("table", self.table.dtype, tuple(self.table.shape))]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table.data

    def weight_shards(self) -> Iterator[WeightShard]:
        yield WeightShard(self.weight_info()[0], 0, self.table.data)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        assert weights is not None
        with torch.no_grad():
            self.table.copy_(weights["table"])

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        raise NotImplementedError

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def data_parallel_rank(self) -> int:
        return 0

    @property
    def data_parallel_size(self) -> int:
        return 1

    @property
    def data_parallel_group(self) -> Any:
        return None


def sample_batch(
    rewards: list[float], groups: list[float] | None = None, *, length: int = 3
) -> TrainBatch:
    """A row for each reward: a prompt token, then a response of up to `length` tokens by turns.

    Behaviour is the uniform policy, which is the model's own at the start.
    """
    rows = len(rewards)
    generator = torch.Generator().manual_seed(rows)
    sequences = torch.randint(VOCABULARY, (rows, length + 2), generator=generator)
    counts = torch.tensor([1 + row % length for row in range(rows)])
    places = torch.arange(length + 1)
    mask = (places >= 1) & (places <= counts[:, None])
    uniform = -float(torch.tensor(float(VOCABULARY)).log())
    return TrainBatch(
        tokens=sequences[:, :-1],
        targets=sequences[:, 1:],
        mask=mask,
        lengths=counts + 1,
        extras={
            "rewards": torch.tensor(rewards),
            "groups": torch.tensor(groups or [0.0] * rows),
            "behaviour_logprobs": torch.where(mask, uniform, 0.0),
        },
    )
