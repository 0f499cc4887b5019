"""Which policy is the proximal one in each optimizer step of a batch."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rollcall_protocol.job_config import LossConfig
from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.losses import LossFunction, policy_loss
from rollcall_runtime.train.policy_update import update_policy
from rollcall_runtime.train.train_engine import UpdateStats
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.test_trainer_rank import CountingEngine

INFERRED = -7.0


class RecordingEngine(CountingEngine):
    """Infers INFERRED for every token, and keeps the minibatches it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.inferred = 0
        self.minibatches: list[Batch] = []

    def infer(self, batch: Batch) -> Tensor:
        self.inferred += batch.rows
        return torch.full((batch.rows, batch.tokens.shape[1] - 1), INFERRED)

    def train_batch(
        self, minibatches: Sequence[Batch], loss_function: LossFunction
    ) -> list[UpdateStats]:
        self.minibatches = list(minibatches)
        return super().train_batch(minibatches, loss_function)


@pytest.mark.parametrize(
    ("kind", "minibatches", "proximal"),
    [
        ("decoupled", 4, [None, INFERRED, INFERRED, INFERRED]),
        ("decoupled", 1, [None]),
        ("tis", 4, [None] * 4),
        ("grpo", 4, [None] * 4),
    ],
)
def test_the_proximal_policy_is_the_one_before_the_first_step(
    kind: str, minibatches: int, proximal: list[float | None]
) -> None:
    engine, batch = RecordingEngine(), random_batch(seed=1)
    loss = policy_loss(LossConfig(kind, 0.2, 5.0))
    update_policy(engine, batch, loss=loss, minibatches=minibatches)
    found = [part.proximal for part in engine.minibatches]
    assert [None if p is None else float(p.mean()) for p in found] == proximal
    later = [part.rows for part, value in zip(engine.minibatches, proximal, strict=True) if value]
    assert engine.inferred == sum(later), "the first step needs no forward pass"
    assert sum(part.rows for part in engine.minibatches) == batch.rows
