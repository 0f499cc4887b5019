"""The fsdp2 engine alone in one rank, against plain torch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.losses import LossSums
from rollcall_runtime.train.policy_update import update_policy
from rollcall_runtime.train.train_engine import EngineSetup, TrainingDivergedError, UpdateStats
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import MINIBATCHES, SEED, Reference, loss, setup


@pytest.fixture
def engine() -> Iterator[Fsdp2Engine]:
    engine = Fsdp2Engine(setup())
    engine.initialize()
    yield engine
    engine.close()


def step(engine: Fsdp2Engine, seed: int) -> list[UpdateStats]:
    return update_policy(engine, random_batch(seed=seed), loss=loss(), minibatches=MINIBATCHES)


def weights(engine: Fsdp2Engine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_weights()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_first_weights_are_those_of_the_seed_bit_for_bit(engine: Fsdp2Engine) -> None:
    assert_same(weights(engine), TinyDecoder.seeded(TinyConfig(), seed=SEED).state_dict())


def test_what_is_exported_is_announced_in_the_same_order(engine: Fsdp2Engine) -> None:
    info = [(item.name, item.dtype, item.shape) for item in engine.weight_info()]
    tensors = [(n, tensor.dtype, tuple(tensor.shape)) for n, tensor in engine.named_weights()]
    assert info == tensors
    assert sum(tensor.numel() for _, tensor in engine.named_weights()) == 102_592


def test_it_trains_as_plain_torch_does(engine: Fsdp2Engine) -> None:
    reference = Reference()
    for seed in range(3):
        expected = reference.train([random_batch(seed=seed)])
        for got, want in zip(step(engine, seed), expected, strict=True):
            assert got.tokens == want.tokens
            assert got.loss == pytest.approx(want.loss, abs=1e-6)
            assert got.gradient_norm == pytest.approx(want.gradient_norm, rel=1e-5)
            assert dict(got.metrics) == pytest.approx(dict(want.metrics), abs=1e-6)
    for name, tensor in engine.named_weights():
        torch.testing.assert_close(tensor, reference.weights[name], atol=1e-5, rtol=0)


@pytest.mark.skipif(torch26_compat.CANNOT_RESHARD, reason="torch 2.6 cannot on a CPU")
def test_gathering_again_for_the_backward_pass_changes_nothing() -> None:
    expected = Reference().train([random_batch(seed=1)])
    engine = Fsdp2Engine(setup(reshardAfterForward=True))
    engine.initialize()
    try:
        got = step(engine, 1)
    finally:
        engine.close()
    norms = [stats.gradient_norm for stats in got]
    assert norms == pytest.approx([stats.gradient_norm for stats in expected], rel=1e-5)


def test_where_torch_cannot_gather_again_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch26_compat, "CANNOT_RESHARD", True)
    with pytest.raises(SpecError, match=r"config\.reshardAfterForward: needs torch 2\.7"):
        Fsdp2Engine(setup(reshardAfterForward=True))


def test_the_second_minibatch_can_be_clipped(engine: Fsdp2Engine) -> None:
    engine.close()
    hasty = EngineSetup(
        model="builtin:reverse-tiny", optimizer=OptimizerConfig("adamw", 0.05), seed=SEED
    )
    engine = Fsdp2Engine(hasty)
    engine.initialize()
    try:
        first, second = step(engine, 1)
    finally:
        engine.close()
    assert first.metrics["clipped"] == 0
    assert second.metrics["clipped"] > 0


def test_samples_that_are_all_alike_teach_nothing_and_let_adam_forget_nothing(
    engine: Fsdp2Engine,
) -> None:
    step(engine, 1)
    before = weights(engine)
    equal_rewards = random_batch(seed=2)
    equal_rewards = replace(equal_rewards, advantages=torch.zeros_like(equal_rewards.advantages))
    for _ in range(3):
        stats = update_policy(engine, equal_rewards, loss=loss(), minibatches=MINIBATCHES)
        assert [item.gradient_norm for item in stats] == [0, 0]
    assert_same(weights(engine), before)
    step(engine, 3)
    untouched = Fsdp2Engine(setup())
    after = weights(engine)
    engine.close()
    untouched.initialize()
    try:
        step(untouched, 1)
        step(untouched, 3)
        assert_same(after, weights(untouched))
    finally:
        untouched.close()


def test_inference_sees_each_update_and_changes_nothing(engine: Fsdp2Engine) -> None:
    batch, reference = random_batch(seed=9), Reference()
    for seed in range(2):
        with torch.no_grad():
            expected = reference.logprobs(batch)
        torch.testing.assert_close(engine.infer(batch), expected, atol=1e-5, rtol=0)
        step(engine, seed)
        reference.train([random_batch(seed=seed)])


def test_a_step_that_is_not_finite_leaves_the_weights(engine: Fsdp2Engine) -> None:
    def diverging(logprobs: torch.Tensor, batch: Batch, /) -> LossSums:
        return LossSums(logprobs.sum() * float("nan"))

    before = weights(engine)
    with pytest.raises(TrainingDivergedError, match="loss nan"):
        engine.train_batch([random_batch(seed=1)], diverging)
    assert_same(weights(engine), before)
    (expected, _) = Reference().train([random_batch(seed=1)])
    (stats, _) = step(engine, 1)  # and no gradient behind
    assert stats.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)


def test_a_batch_without_response_tokens_does_nothing_bad(engine: Fsdp2Engine) -> None:
    batch = random_batch(seed=1)
    blank = Batch(
        tokens=batch.tokens,
        mask=torch.zeros_like(batch.mask),
        logprobs=batch.logprobs,
        versions=batch.versions,
        advantages=batch.advantages,
    )
    (stats,) = engine.train_batch([blank], loss())
    assert (stats.tokens, stats.loss, stats.gradient_norm) == (0, 0.0, 0.0)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # by torch 2.6 itself
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    engine: Fsdp2Engine, tmp_path: Path
) -> None:
    step(engine, 0)
    engine.save_checkpoint(tmp_path / "step-1", state={"step": 1, "cursor": 16})
    expected_stats, expected_weights = step(engine, 1), weights(engine)
    engine.close()
    resumed = Fsdp2Engine(setup())
    resumed.initialize()
    try:
        resumed.infer(random_batch(seed=1))  # gathers weights that the checkpoint then replaces
        assert resumed.load_checkpoint(tmp_path / "step-1") == {"step": 1, "cursor": 16}
        stats, after = step(resumed, 1), weights(resumed)
    finally:
        resumed.close()
    assert [s.loss for s in stats] == pytest.approx([s.loss for s in expected_stats], abs=1e-6)
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)


def test_weights_can_be_replaced_and_the_optimizer_keeps_its_state(engine: Fsdp2Engine) -> None:
    step(engine, 0)
    wanted = TinyDecoder.seeded(TinyConfig(), seed=SEED + 1).state_dict()
    before = engine._optimizer.state_dict()["state"]
    engine.load_weights(wanted)
    assert_same(weights(engine), wanted)
    assert engine._optimizer.state_dict()["state"] == before
    step(engine, 1)


def test_weights_of_another_model_are_refused(engine: Fsdp2Engine) -> None:
    before = weights(engine)
    name, tensor = next(iter(before.items()))
    for wrong in ({}, {**before, "more": tensor}, {**before, name: tensor[:1]}):
        with pytest.raises(ValueError, match="not this model's"):
            engine.load_weights(wrong)
    assert_same(weights(engine), before)


def test_a_world_at_a_time_and_it_is_left_behind_clean(engine: Fsdp2Engine) -> None:
    with pytest.raises(RuntimeError, match="a training process group already"):
        Fsdp2Engine(setup()).initialize()
    engine.close()
    engine.close()
    assert not dist.is_initialized()


def test_a_wrong_setting_leaves_no_world_behind() -> None:
    wrong = EngineSetup(model="builtin:reverse-tiny", optimizer=OptimizerConfig("sgd", 1.0))
    with pytest.raises(SpecError, match="unknown optimizer 'sgd'"):
        Fsdp2Engine(wrong).initialize()
    assert not dist.is_initialized()
    with pytest.raises(SpecError, match=r"^spec.trainer.engine.config.beta3: unknown setting"):
        Fsdp2Engine(setup(beta3="0.9"))
    with pytest.raises(SpecError, match="maxGradientNorm must be positive"):
        Fsdp2Engine(setup(maxGradientNorm="0"))
