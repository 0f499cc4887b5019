"""Which models the engine computes, and what it says of those that it does not."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

pytest.importorskip("megatron.core", exc_type=ImportError)

from rollcall_plugins.trainers.megatron.hf_config import (
    Architecture,
    check_parallel,
)
from rollcall_plugins.trainers.megatron.model_provider import ModelProvider
from rollcall_runtime.worker.errors import SpecError

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(config: Any) -> Architecture:
    return ModelProvider().architecture(config.to_dict())


def test_qwen3_norms_queries_and_keys_and_has_a_head_dimension_of_its_own() -> None:
    found = read(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True))
    assert (found.qk_norm, found.qkv_bias, found.head_dim, found.tied) == (True, False, 16, True)


def test_qwen2_has_biases_of_queries_keys_and_values() -> None:
    found = read(Qwen2Config(**SIZES))
    assert (found.qk_norm, found.qkv_bias, found.head_dim) == (False, True, 8)


def test_llamas_rotary_scaling_is_megatrons() -> None:
    found = read(LlamaConfig(**SIZES, rope_parameters=LLAMA3))
    assert (found.rope_base, found.rope_factor) == (5e5, 8.0)
    assert read(LlamaConfig(**SIZES)).rope_factor is None


def test_the_rotary_base_is_found_where_former_configurations_had_it() -> None:
    config = LlamaConfig(**SIZES).to_dict()
    del config["rope_parameters"]
    found = ModelProvider().architecture({**config, "rope_theta": 12345.0})
    assert found.rope_base == 12345.0


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (MistralConfig(**SIZES), "'mistral'"),
        (LlamaConfig(**SIZES, mlp_bias=True), "mlp_bias"),
        (LlamaConfig(**SIZES, attention_bias=True), "attention_bias"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "hidden_act"),
        (LlamaConfig(**SIZES, attention_dropout=0.1), "attention_dropout"),
        (LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "low_freq_factor": 2.0}), "llama3"),
        (Qwen2Config(**SIZES, use_sliding_window=True), "use_sliding_window"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config: Any, word: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(config)
    assert caught.value.field == "spec.model.path"
    assert word in caught.value.problem
    assert "fsdp2" in caught.value.problem


@pytest.mark.parametrize(("size", "word"), [(3, "num_attention_heads"), (4, "num_key_value_heads")])
def test_ranks_that_cannot_share_heads_evenly_are_refused(size: int, word: str) -> None:
    architecture = read(LlamaConfig(**SIZES))
    check_parallel(architecture, tensor=2, pipeline=2)
    with pytest.raises(SpecError) as caught:
        check_parallel(architecture, tensor=size)
    assert caught.value.field == "spec.trainer.engine.config.tensorParallel"
    assert word in caught.value.problem


def test_stages_that_cannot_share_layers_evenly_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        check_parallel(read(LlamaConfig(**SIZES)), pipeline=4)
    assert caught.value.field == "spec.trainer.engine.config.pipelineParallel"
