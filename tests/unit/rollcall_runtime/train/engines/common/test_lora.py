"""Low-rank adapters train alone, and leave the model's names as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import setup, update_policy

# Layers of the built-in decoder.
LORA: dict[str, Any] = {"lora_rank": 2, "lora_alpha": 4.0, "lora_targets": "qkv, up"}


def opened(ranks: TrainerProcessGroup, **settings: Any) -> Fsdp2Engine:
    engine = Fsdp2Engine(setup(ranks, **settings))
    engine.initialize()
    return engine


def weights(engine: Fsdp2Engine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.named_weights()}


def test_only_the_layers_with_adapters_change_and_names_stay(ranks: TrainerProcessGroup) -> None:
    plain, engine = opened(ranks), opened(ranks, **LORA)
    first = weights(engine)
    assert list(first) == list(weights(plain))
    assert engine.weight_info() == plain.weight_info()
    assert all(torch.equal(first[name], tensor) for name, tensor in plain.named_weights())
    for seed in range(3):
        update_policy(engine, random_batch(seed=seed))
    after = weights(engine)
    changed = {name for name in first if not torch.equal(first[name], after[name])}
    layers = {f"blocks.{number}.{name}.weight" for number in range(2) for name in ("qkv", "up")}
    assert changed == layers
    shards = {shard.info.name: shard.tensor for shard in engine.weight_shards()}
    assert all(torch.equal(shards[name], after[name]) for name in after)


def test_a_model_with_merged_weights_computes_the_same(ranks: TrainerProcessGroup) -> None:
    engine, batch = opened(ranks, **LORA), random_batch(seed=9)
    update_policy(engine, random_batch(seed=1))
    merged = opened(ranks)
    merged.load_weights(weights(engine))
    found, expected = (one.forward(batch).logprobs for one in (engine, merged))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_replaced_weights_are_those_that_come_out(ranks: TrainerProcessGroup) -> None:
    engine = opened(ranks, **LORA)
    update_policy(engine, random_batch(seed=1))
    wanted = {name: tensor * 0.5 for name, tensor in weights(engine).items()}
    engine.load_weights(wanted)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in engine.named_weights())


def test_training_goes_on_from_a_checkpoint(ranks: TrainerProcessGroup, tmp_path: Path) -> None:
    engine = opened(ranks, **LORA)
    update_policy(engine, random_batch(seed=1))
    engine.save_checkpoint(tmp_path / "step-1", state={})
    expected = update_policy(engine, random_batch(seed=2))
    resumed = opened(ranks, **LORA)
    resumed.load_checkpoint(tmp_path / "step-1")
    assert update_policy(resumed, random_batch(seed=2)) == expected
    with pytest.raises(ValueError, match="is of another model"):
        opened(ranks).load_checkpoint(tmp_path / "step-1")


def test_layers_that_the_model_does_not_have_are_refused(ranks: TrainerProcessGroup) -> None:
    with pytest.raises(SpecError, match=r"config\.loraTargets: .*q_proj.* not found"):
        opened(ranks, lora_rank=2)
