"""The fsdp2 engine alone in one rank, against plain torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_loss import LossSums, ModelOutput
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_model
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import (
    SEED,
    Reference,
    assert_trained_alike,
    loss,
    setup,
    update_policy,
)


@contextmanager
def opened(ranks: TrainerProcessGroup, **settings: Any) -> Iterator[Fsdp2Engine]:
    engine = Fsdp2Engine(setup(ranks, **settings))
    engine.initialize()
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(ranks: TrainerProcessGroup) -> Iterator[Fsdp2Engine]:
    with opened(ranks) as made:
        yield made


def step(engine: Fsdp2Engine, seed: int) -> list[ModelUpdate]:
    return update_policy(engine, random_batch(seed=seed))


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
        expected = reference.train(random_batch(seed=seed))
        for got, want in zip(step(engine, seed), expected, strict=True):
            assert got.tokens == want.tokens
            assert got.loss == pytest.approx(want.loss, abs=1e-6)
            assert got.gradient_norm == pytest.approx(want.gradient_norm, rel=1e-5)
            assert dict(got.metrics) == pytest.approx(dict(want.metrics), abs=1e-6)
    for name, tensor in engine.named_weights():
        assert_trained_alike(name, tensor, reference.weights[name])


def test_where_torch_cannot_gather_again_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, ranks: TrainerProcessGroup
) -> None:
    monkeypatch.setattr(torch26_compat, "CANNOT_RESHARD", True)
    with pytest.raises(SpecError, match=r"config\.reshardAfterForward: needs torch 2\.7"):
        Fsdp2Engine(setup(ranks, reshard_after_forward=True))


def test_the_second_minibatch_can_be_clipped(ranks: TrainerProcessGroup) -> None:
    with opened(ranks, learning_rate=0.05) as hasty:
        first, second = step(hasty, 1)
    assert first.metrics["pg_clipfrac"] == 0
    assert second.metrics["pg_clipfrac"] > 0


def test_samples_that_are_all_alike_teach_nothing_and_let_adam_forget_nothing(
    engine: Fsdp2Engine, ranks: TrainerProcessGroup
) -> None:
    step(engine, 1)
    before = weights(engine)
    equal_rewards = random_batch(seed=2)
    none = torch.zeros_like(equal_rewards.extras["advantages"])
    equal_rewards = equal_rewards.with_extras(advantages=none)
    for _ in range(3):
        stats = update_policy(engine, equal_rewards)
        assert [item.gradient_norm for item in stats] == [0, 0]
    assert_same(weights(engine), before)
    step(engine, 3)
    with opened(ranks) as untouched:
        step(untouched, 1)
        step(untouched, 3)
        assert_same(weights(engine), weights(untouched))


def test_inference_sees_each_update_and_changes_nothing(engine: Fsdp2Engine) -> None:
    batch, reference = random_batch(seed=9), Reference()
    for seed in range(2):
        with torch.no_grad():
            expected = reference.logprobs(batch)
        found = engine.forward(batch).logprobs
        assert found is not None
        expected = torch.where(batch.mask, expected, 0.0)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        step(engine, seed)
        reference.train(random_batch(seed=seed))


@dataclass
class Scaled:
    """Cross-entropy times `scale`, over tokens."""

    scale: float
    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> torch.Tensor:
        return batch.mask.sum()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        assert output.logprobs is not None
        return LossSums(-output.logprobs[batch.mask].sum() * self.scale)


def test_a_step_that_is_not_finite_leaves_the_weights(engine: Fsdp2Engine) -> None:
    before = weights(engine)
    engine.forward_backward(random_batch(seed=1), Scaled(float("nan")))
    assert engine.optimizer_step().skipped == "not-finite"
    assert_same(weights(engine), before)
    (expected, _) = Reference().train(random_batch(seed=1))
    (stats, _) = step(engine, 1)  # and no gradient behind
    assert stats.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)


def test_a_batch_without_response_tokens_does_nothing_bad(engine: Fsdp2Engine) -> None:
    batch = random_batch(seed=1)
    blank = replace(batch, mask=torch.zeros_like(batch.mask))
    result = engine.forward_backward(blank, loss())
    assert (result.tokens, result.loss, result.denominator) == (0, 0.0, 1.0)
    assert engine.optimizer_step().skipped == "no-gradient"


def test_gradients_add_up_until_the_step(engine: Fsdp2Engine, ranks: TrainerProcessGroup) -> None:
    for scale in (0.25, 0.5):
        engine.forward_backward(random_batch(seed=1), Scaled(scale))
    with opened(ranks) as other:
        other.forward_backward(random_batch(seed=1), Scaled(9.0))
        other.zero_grad()
        other.forward_backward(random_batch(seed=1), Scaled(0.75))
        expected = other.optimizer_step()
    assert engine.optimizer_step().gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-5)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # by torch 2.6 itself
def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    engine: Fsdp2Engine, ranks: TrainerProcessGroup, tmp_path: Path
) -> None:
    step(engine, 0)
    engine.save_checkpoint(tmp_path / "step-1", state={"step": 1, "cursor": 16})
    expected_stats, expected_weights = step(engine, 1), weights(engine)
    engine.close()
    with opened(ranks) as resumed:
        resumed.forward(random_batch(seed=1))  # gathers weights that the checkpoint then replaces
        assert resumed.load_checkpoint(tmp_path / "step-1") == {"step": 1, "cursor": 16}
        stats, after = step(resumed, 1), weights(resumed)
    assert [s.loss for s in stats] == pytest.approx([s.loss for s in expected_stats], abs=1e-6)
    for name, tensor in expected_weights.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-6, rtol=0)


def test_the_schedule_continues_from_a_checkpoint(
    ranks: TrainerProcessGroup, tmp_path: Path
) -> None:
    schedule: dict[str, Any] = {"schedule": "linear", "decay_steps": 8, "warmup_steps": 2}
    with opened(ranks, **schedule) as engine:
        rates = []
        for seed in range(2):
            rates += [item.learning_rate for item in step(engine, seed)]
        assert rates == pytest.approx([rate * 1e-3 for rate in (0.5, 1, 1, 0.875)])
        engine.save_checkpoint(tmp_path / "step-2", state={})
    with opened(ranks, **schedule) as resumed:
        resumed.load_checkpoint(tmp_path / "step-2")
        assert resumed.learning_rate == pytest.approx(0.75e-3)


def test_a_checkpoint_of_another_model_is_refused(
    ranks: TrainerProcessGroup, engine: Fsdp2Engine, tmp_path: Path
) -> None:
    engine.save_checkpoint(tmp_path / "step-0", state={})
    before = weights(engine)
    other = Fsdp2Engine(replace(setup(ranks), head="value"))
    other.initialize()
    with pytest.raises(ValueError, match=r"step-0 is of another model: 2 tensors differ .* head"):
        other.load_checkpoint(tmp_path / "step-0")
    engine.load_checkpoint(tmp_path / "step-0")
    assert_same(weights(engine), before)


def test_before_its_first_step_an_optimizer_has_no_state_to_save(
    ranks: TrainerProcessGroup, tmp_path: Path
) -> None:
    """Torch would make one, with a step that was never taken."""
    with opened(ranks) as engine:
        engine.save_checkpoint(tmp_path / "step-0", state={})
        expected = step(engine, 1)
        step(engine, 2)
        engine.load_checkpoint(tmp_path / "step-0")
        assert step(engine, 1) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16"},
        {"offload": "parameters"},
        {"offload": "optimizer"},
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "full", "offload": "parameters", "logprob_chunk": 5},
    ],
)
def test_what_saves_memory_changes_no_result(
    ranks: TrainerProcessGroup, settings: dict[str, Any]
) -> None:
    tolerance = 2e-2 if "precision" in settings else 1e-6
    with opened(ranks) as plain, opened(ranks, **settings) as engine:
        for seed in range(2):
            for got, want in zip(step(engine, seed), step(plain, seed), strict=True):
                assert got.loss == pytest.approx(want.loss, abs=tolerance)
                assert got.gradient_norm == pytest.approx(want.gradient_norm, rel=tolerance)
        assert engine.weight_info() == plain.weight_info(), "weights stay in float32"


def test_a_forward_pass_between_gradients_and_step_does_no_harm(
    ranks: TrainerProcessGroup,
) -> None:
    """Parameters that are gathered must not outlive the step; offloading makes FSDP shard here."""
    batch = random_batch(seed=1)
    found = []
    for between in (False, True):
        with opened(ranks, offload="parameters") as engine:
            engine.forward_backward(batch, loss())
            if between:
                engine.forward(batch)
            engine.optimizer_step()
            found.append(engine.forward(batch).logprobs)
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)


def test_weights_can_be_replaced_and_the_optimizer_keeps_its_state(engine: Fsdp2Engine) -> None:
    step(engine, 0)
    wanted = TinyDecoder.seeded(TinyConfig(), seed=SEED + 1).state_dict()
    assert engine._optimizer is not None
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


def test_several_engines_share_the_process_group(
    engine: Fsdp2Engine, ranks: TrainerProcessGroup
) -> None:
    """Actor and reference, say; closing one leaves the other."""
    before = weights(engine)
    with opened(ranks) as other:
        step(other, 1)
    assert_same(weights(engine), before)
    step(engine, 1)


def test_closing_twice_is_harmless(ranks: TrainerProcessGroup) -> None:
    with opened(ranks) as engine:
        engine.close()


def test_what_an_engine_cannot_do_is_refused_by_name(ranks: TrainerProcessGroup) -> None:
    right = setup(ranks)
    with pytest.raises(SpecError, match="unknown optimizer 'sgd'"):
        Fsdp2Engine(replace(right, optimizer=OptimizerConfig("sgd", 1.0)))
    with pytest.raises(
        SpecError, match=r"^spec.trainer.engine.config.beta3: this engine has no such setting"
    ):
        Fsdp2Engine(replace(right, own_settings={"beta3": "0.9"}))
    with pytest.raises(SpecError, match=r"config.tensorParallel: "):
        Fsdp2Engine(setup(ranks, tensor_parallel=2))
    with pytest.raises(SpecError, match="replicas 3 does not divide"):
        Fsdp2Engine(setup(ranks, replicas=3))


def test_an_engine_without_an_optimizer_only_evaluates(ranks: TrainerProcessGroup) -> None:
    engine = Fsdp2Engine(replace(setup(ranks), optimizer=None))
    engine.initialize()
    assert engine.forward(random_batch(seed=1)).logprobs is not None
    assert engine.learning_rate == 0
    with pytest.raises(RuntimeError, match="without an optimizer"):
        engine.optimizer_step()
    engine.close()


@pytest.mark.parametrize("attention", ["varlen", "flash_attention_2"])
def test_a_kernel_for_packed_rows_that_cannot_be_had_is_refused(
    ranks: TrainerProcessGroup, attention: str
) -> None:
    with pytest.raises(SpecError) as error, opened(ranks, packing=True, attention=attention):
        pass
    assert error.value.field == "spec.trainer.engine.config.attention"
    problem = f"{attention} cannot be had here: a kernel for several sequences needs a GPU"
    assert problem in str(error.value)


def test_a_kernel_for_packed_rows_is_refused_for_padded_ones() -> None:
    with pytest.raises(ValueError, match="attention varlen is for packed rows: set packing"):
        EngineSettings(attention="varlen")


@pytest.mark.parametrize(("architecture", "packs"), [("mistral", True), ("biogpt", False)])
def test_packed_rows_are_refused_where_sequences_may_see_each_other(
    ranks: TrainerProcessGroup, tmp_path: Path, architecture: str, packs: bool
) -> None:
    """Transformers makes no mask for biogpt."""
    path = str(write_model(tmp_path / "m", architecture, pad_token_id=1))
    engine = Fsdp2Engine(replace(setup(ranks, packing=True), model=path))
    if packs:
        engine.initialize()
        return
    with pytest.raises(SpecError) as error:
        engine.initialize()
    assert error.value.field == "spec.trainer.engine.config.packing"
    assert "was not tested with the architecture of" in error.value.problem
