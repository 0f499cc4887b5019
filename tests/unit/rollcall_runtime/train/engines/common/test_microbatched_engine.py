"""However a batch is cut, and whatever other ranks need, the result is the same."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import BatchResult
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import loss, setup

BATCH = random_batch(seed=7)


def gradients(
    ranks: TrainerProcessGroup, kind: type[Fsdp2Engine] = Fsdp2Engine, **settings: Any
) -> tuple[BatchResult, dict[str, Tensor]]:
    engine = kind(setup(ranks, **settings))
    engine.initialize()
    result = engine.forward_backward(BATCH, loss())
    found = {n: p.grad for n, p in engine._module.named_parameters() if p.grad is not None}
    engine.close()
    return result, found


def assert_alike(
    found: tuple[BatchResult, dict[str, Tensor]], expected: tuple[BatchResult, dict[str, Tensor]]
) -> None:
    (result, tensors), (wanted, others) = found, expected
    assert (result.tokens, result.denominator) == (wanted.tokens, wanted.denominator)
    assert result.loss == pytest.approx(wanted.loss, abs=1e-6)
    assert dict(result.metrics) == pytest.approx(dict(wanted.metrics), abs=1e-5)
    torch.testing.assert_close(tensors, others, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 12, 40])
def test_the_cut_changes_no_gradient(
    ranks: TrainerProcessGroup, max_tokens: int, packing: bool
) -> None:
    cut = gradients(ranks, max_tokens_per_microbatch=max_tokens, packing=packing)
    assert_alike(cut, gradients(ranks))


class BesideABusyRank(Fsdp2Engine):
    """Another rank needs 20 micro-batches, and has no rows that count."""

    def _gathered(self, values: Tensor) -> Tensor:
        other = torch.tensor([20.0]) if len(values) == 1 else torch.zeros_like(values)
        return torch.stack([values, other])


def test_microbatches_without_rows_change_nothing(ranks: TrainerProcessGroup) -> None:
    cut = gradients(ranks, BesideABusyRank, max_tokens_per_microbatch=40)
    assert_alike(cut, gradients(ranks))


def test_a_rank_without_rows_takes_part(ranks: TrainerProcessGroup) -> None:
    engine = Fsdp2Engine(setup(ranks))
    engine.initialize()
    nothing = BATCH.select([])
    result = engine.forward_backward(nothing, loss())
    assert (result.loss, result.tokens) == (0, 0)
    assert engine.optimizer_step().skipped == "no-gradient"
    output = engine.forward(nothing, entropy=True)
    assert output.logprobs is not None
    assert output.logprobs.shape == nothing.tokens.shape
    engine.close()


@pytest.mark.parametrize("packing", [False, True])
def test_outputs_come_back_in_the_order_of_rows(ranks: TrainerProcessGroup, packing: bool) -> None:
    found = []
    for settings in ({}, {"max_tokens_per_microbatch": 15, "packing": packing}):
        engine = Fsdp2Engine(setup(ranks, **settings))
        engine.initialize()
        found.append(engine.forward(BATCH, entropy=True))
        engine.close()
    for name in ("logprobs", "entropy"):
        torch.testing.assert_close(
            getattr(found[0], name), getattr(found[1], name), atol=1e-6, rtol=0
        )


def test_an_engine_begins_in_evaluation_and_returns_to_it(ranks: TrainerProcessGroup) -> None:
    engine = Fsdp2Engine(setup(ranks))
    engine.initialize()
    modes = [engine._module.training]
    with engine.train_mode():
        modes.append(engine._module.training)
        with engine.eval_mode():
            modes.append(engine._module.training)
        modes.append(engine._module.training)
    modes.append(engine._module.training)
    assert modes == [False, True, False, True, False]
    engine.close()
