"""Low-rank adapters train alone, and leave the model's names as they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rollcall_runtime.models.export import export_model
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint.checked_pickles import MetadataReader
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
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


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


# --- where the adapters alone leave the trainer ---

ALONE: dict[str, Any] = {**LORA, "lora_export": "adapter"}


def own(engine: Fsdp2Engine) -> dict[str, Tensor]:
    """The model's own weights, as they are in the engine."""
    state = engine._model.state_dict()
    return {name: tensor.clone() for name, tensor in state.items() if ".lora_" not in name}


def test_only_their_tensors_are_exported_and_the_model_stays_as_it_was(
    ranks: TrainerProcessGroup,
) -> None:
    engine = opened(ranks, **ALONE)
    before, first = own(engine), weights(engine)
    names = {
        f"base_model.model.blocks.{number}.{layer}.lora_{matrix}.weight"
        for number in range(2)
        for layer in ("qkv", "up")
        for matrix in "AB"
    }
    assert set(first) == names
    assert [info.name for info in engine.weight_info()] == list(first)
    assert {shard.info.name for shard in engine.weight_shards()} == names
    losses = [update_policy(engine, random_batch(seed=1))[0].loss for _ in range(4)]
    assert losses[-1] < losses[0]
    assert all(not torch.equal(tensor, first[name]) for name, tensor in weights(engine).items())
    assert_equal(own(engine), before)


def test_what_is_exported_makes_another_trainer_compute_the_same(
    ranks: TrainerProcessGroup,
) -> None:
    engine, batch = opened(ranks, **ALONE), random_batch(seed=9)
    update_policy(engine, random_batch(seed=1))
    other = opened(ranks, **ALONE)
    other.load_weights(weights(engine))
    found, expected = (one.forward(batch).logprobs for one in (other, engine))
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)


def test_a_checkpoint_holds_their_tensors_alone_and_training_goes_on_bit_for_bit(
    ranks: TrainerProcessGroup, tmp_path: Path
) -> None:
    engine, path = opened(ranks, **ALONE), tmp_path / "step-1"
    update_policy(engine, random_batch(seed=1))
    engine.save_checkpoint(path, state={"step": 1})
    saved = MetadataReader(path).read_metadata().state_dict_metadata
    model = {name for name in saved if name.startswith("model.")}
    assert len(model) == 8
    assert all(".lora_" in name for name in model)
    resumed = opened(ranks, **ALONE)
    assert resumed.load_checkpoint(path) == {"step": 1}
    assert_equal(weights(resumed), weights(engine))
    expected = update_policy(engine, random_batch(seed=2))
    assert update_policy(resumed, random_batch(seed=2)) == expected
    assert_equal(weights(resumed), weights(engine))
    with pytest.raises(ValueError, match="is of another model"):
        opened(ranks, **LORA).load_checkpoint(path)


def test_embeddings_get_no_adapters(ranks: TrainerProcessGroup) -> None:
    with pytest.raises(SpecError, match=r"config\.loraTargets: 'embed' names embeddings"):
        opened(ranks, lora_rank=2, lora_targets="embed")


# --- of models in Hugging Face's format, whose output layer may be the embeddings ---


def hugging_face(
    directory: Path, ranks: TrainerProcessGroup, *, tied: bool, **lora: Any
) -> Fsdp2Engine:
    path = str(write_tiny_model(directory, tied=tied, characters=LETTERS))
    engine = Fsdp2Engine(replace(setup(ranks, **{"lora_rank": 2, **lora}), model=path))
    engine.initialize()
    return engine


@pytest.mark.parametrize("targets", ["lm_head", "q_proj,lm_head", "embed_tokens"])
@pytest.mark.parametrize("export", ["merged", "adapter"])
def test_an_output_layer_that_is_the_embeddings_gets_no_adapter(
    ranks: TrainerProcessGroup, tmp_path: Path, targets: str, export: str
) -> None:
    message = rf"config\.loraTargets: '{targets}' .*model\.embed_tokens and lm_head are one weight"
    with pytest.raises(SpecError, match=message):
        hugging_face(tmp_path / "m", ranks, tied=True, lora_targets=targets, lora_export=export)


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_exported_computes_what_was_trained(
    ranks: TrainerProcessGroup, tmp_path: Path, tied: bool
) -> None:
    """Each adapter is in the tensors that leave, which have the names of the files."""
    targets = "q_proj" if tied else "q_proj,lm_head"
    engine = hugging_face(tmp_path / "m", ranks, tied=tied, lora_targets=targets)
    first, batch = weights(engine), random_batch(seed=9)
    source = open_model(engine.setup.model)
    assert first.keys() == source.weights().shapes.keys()
    update_policy(engine, random_batch(seed=1))
    after = weights(engine)
    changed = {name.split(".")[-2] for name in first if not torch.equal(first[name], after[name])}
    assert changed == set(targets.split(","))
    export_model(source, after.items(), tmp_path / "exported")
    logits = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")(batch.tokens).logits
    wanted = logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
    found = engine.forward(batch).logprobs
    assert found is not None
    torch.testing.assert_close(found[batch.mask], wanted[batch.mask], atol=1e-5, rtol=0)
