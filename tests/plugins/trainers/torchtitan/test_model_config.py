"""torchtitan's model configuration from the config.json of a Hugging Face model."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rollcall_plugins.trainers.torchtitan.model_config import model_spec, parameter_names
from rollcall_runtime.worker.errors import SpecError

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def config_of(kind: str, **values: Any) -> dict[str, Any]:
    """The contents of a config.json as transformers writes it."""
    return dict(AutoConfig.for_model(kind, **SIZES, **values).to_dict())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_a_model_has_the_parameters_of_transformers_model(kind: str, tied: bool) -> None:
    config = config_of(kind, tie_word_embeddings=tied)
    spec = model_spec(config)
    with torch.device("meta"):
        own = spec.model.build().state_dict()
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))  # type: ignore[no-untyped-call]
    names = parameter_names(spec)
    assert {name: own[ours].shape for ours, name in names.items()} == {
        name: parameter.shape for name, parameter in theirs.named_parameters()
    }


def test_a_configuration_from_before_transformers_5_is_understood() -> None:
    new = config_of("llama", rope_parameters=LLAMA3_ROPE)
    old = {name: value for name, value in new.items() if name != "rope_parameters"}
    old |= {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3_ROPE, "rope_theta": None}}
    del old["rope_scaling"]["rope_theta"]
    assert model_spec(old).model.first_attention.rope == model_spec(new).model.first_attention.rope


def test_scaled_rotary_embeddings_equal_those_of_transformers() -> None:
    config = config_of("llama", rope_parameters=LLAMA3_ROPE)
    cache = model_spec(config).model.first_attention.rope.build().cache
    theirs = LlamaRotaryEmbedding(LlamaConfig(**config))
    cos, sin = theirs(torch.zeros(1), torch.arange(64)[None])
    torch.testing.assert_close(cache, torch.cat([cos, sin], dim=-1)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"attention_dropout": 0.1}, "attention_dropout"),
        ("qwen3", {"rope_parameters": {**LLAMA3_ROPE, "rope_type": "dynamic"}}, "rope_type"),
    ],
)
def test_what_torchtitan_lacks_is_refused_by_name(
    kind: str, values: dict[str, Any], named: str
) -> None:
    with pytest.raises(SpecError, match=f"spec.model.path: config.json has {named}"):
        model_spec(config_of(kind) | values)


def test_a_model_that_torchtitan_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="no 'mistral' model, only llama, qwen2 and qwen3"):
        model_spec(config_of("qwen3") | {"model_type": "mistral"})
