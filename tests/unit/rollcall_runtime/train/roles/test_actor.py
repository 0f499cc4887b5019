"""Which policy is the proximal one in each optimizer step of a batch."""

import math

import pytest
import torch

from rollcall_protocol.algorithm_settings import AlgorithmSettings, preset
from rollcall_runtime.train.roles.actor import Actor
from tests.unit.rollcall_runtime.train.roles.bigram_engine import (
    VOCABULARY,
    BigramEngine,
    sample_batch,
)


@pytest.mark.parametrize(
    ("settings", "minibatches", "inferred"),
    [
        (AlgorithmSettings(), 4, 6),
        (AlgorithmSettings(), 1, 0),
        (AlgorithmSettings(objective="policy-gradient"), 4, 0),
        (preset("cispo"), 4, 0),
        (preset("gspo"), 2, 4),
    ],
    ids=str,
)
def test_the_proximal_policy_is_the_one_before_the_first_step(
    settings: AlgorithmSettings, minibatches: int, inferred: int
) -> None:
    engine = BigramEngine()
    batch = sample_batch([0.0] * 8).with_extras(advantages=torch.linspace(-1, 1, 8))
    updates = Actor(engine, settings, minibatches=minibatches).update(batch)
    assert len(updates) == minibatches
    assert engine.forwards == inferred, "the first step needs no forward pass"
    first, *others = engine.batches
    assert "proximal_logprobs" not in first.extras
    for part in others if inferred else []:
        before = part.extras["proximal_logprobs"]
        assert before[part.mask].tolist() == pytest.approx(
            [-math.log(VOCABULARY)] * int(part.mask.sum())
        )
        assert float(before[~part.mask].abs().sum()) == 0


def test_good_tokens_become_likelier_and_bad_ones_less_so() -> None:
    engine = BigramEngine(learning_rate=0.1)
    batch = sample_batch([0.0] * 2).with_extras(advantages=torch.tensor([1.0, -1.0]))
    Actor(engine, AlgorithmSettings(), minibatches=1).update(batch)
    after = engine.forward(batch).logprobs
    assert after is not None
    change = torch.where(batch.mask, after + math.log(VOCABULARY), 0.0).sum(1)
    assert change[0] > 0 > change[1]
