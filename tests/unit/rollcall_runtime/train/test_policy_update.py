"""Which policy is the proximal one in each optimizer step of a batch, and when training ends."""

import math

import pytest
import torch

from rollcall_protocol.job_config import LossConfig
from rollcall_runtime.train.losses import policy_loss
from rollcall_runtime.train.policy_update import TrainingDivergedError, update_policy
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import BatchResult, OptimizerStep
from rollcall_runtime.train.train_loss import LossFunction, ModelOutput
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine

INFERRED = -7.0


class RecordingEngine(CountingEngine):
    """Infers INFERRED for every token, and keeps the minibatches it was given."""

    def __init__(self, *, loss: float = 0.0) -> None:
        super().__init__()
        self.loss, self.forgotten = loss, False
        self.inferred = 0
        self.minibatches: list[TrainBatch] = []

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        assert not self.minibatches, "before the first update"
        self.inferred += batch.rows
        return ModelOutput(logprobs=torch.full(batch.tokens.shape, INFERRED))

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        self.minibatches.append(batch)
        return BatchResult(self.loss, 1.0, batch.rows, {})

    def zero_grad(self) -> None:
        self.forgotten = True


def proximal(batch: TrainBatch) -> float | None:
    found = batch.extras.get("proximal_logprobs")
    return None if found is None else float(found.mean())


@pytest.mark.parametrize(
    ("kind", "minibatches", "expected"),
    [
        ("decoupled", 4, [None, INFERRED, INFERRED, INFERRED]),
        ("decoupled", 1, [None]),
        ("tis", 4, [None] * 4),
        ("grpo", 4, [None] * 4),
    ],
)
def test_the_proximal_policy_is_the_one_before_the_first_step(
    kind: str, minibatches: int, expected: list[float | None]
) -> None:
    engine, batch = RecordingEngine(), random_batch(seed=1)
    loss = policy_loss(LossConfig(kind, 0.2, 5.0))
    update_policy(engine, batch, loss=loss, minibatches=minibatches)
    assert [proximal(part) for part in engine.minibatches] == expected
    later = [part.rows for part, value in zip(engine.minibatches, expected, strict=True) if value]
    assert engine.inferred == sum(later), "the first step needs no forward pass"
    assert sum(part.rows for part in engine.minibatches) == batch.rows
    assert engine.updates == minibatches


def test_each_rank_gets_its_rows_of_every_minibatch() -> None:
    batch = random_batch(seed=1, prompts=3, group_size=5)
    loss = policy_loss(LossConfig("tis", 0.2, 5.0))
    parts = []
    for rank in range(2):
        engine = RecordingEngine()
        engine.ranks.rank, engine.ranks.others = rank, [None]
        update_policy(engine, batch, loss=loss, minibatches=2)
        parts.append([part.rows for part in engine.minibatches])
    assert parts == [[4, 4], [3, 4]]


def test_training_ends_where_the_loss_is_not_finite() -> None:
    engine = RecordingEngine(loss=math.nan)
    loss = policy_loss(LossConfig("grpo", 0.2, 5.0))
    with pytest.raises(TrainingDivergedError, match="loss nan"):
        update_policy(engine, random_batch(seed=1), loss=loss, minibatches=1)
    assert engine.updates == 0
    assert engine.forgotten


def test_training_ends_where_the_gradient_is_not_finite() -> None:
    class Exploding(RecordingEngine):
        def optimizer_step(self) -> OptimizerStep:
            return OptimizerStep(math.inf, 0.1, "not-finite")

    loss = policy_loss(LossConfig("grpo", 0.2, 5.0))
    with pytest.raises(TrainingDivergedError, match="gradient norm inf"):
        update_policy(Exploding(), random_batch(seed=1), loss=loss, minibatches=1)
