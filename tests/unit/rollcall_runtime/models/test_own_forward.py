"""Log-probabilities are of the logits that an architecture's own forward pass makes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models.model_parts import (
    MASKED_BY_POSITIONS,
    check_parts,
    hidden_states,
    logits,
    masks_packed_rows,
    output_layer,
)
from rollcall_runtime.models.model_source import Head
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.engines.common.model_heads import model_output, with_head
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_model
from tests.unit.rollcall_runtime.train.batches import random_batch

AFTER_THE_HEAD: dict[str, dict[str, Any]] = {
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "gemma2": {"final_logit_softcapping": 0.5, "attn_logit_softcapping": 0.5, "head_dim": 16},
    "gemma3_text": {"final_logit_softcapping": 0.5, "head_dim": 16},
}
NOTHING_AFTER: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": 3},
    "olmo2": {},
    "phi": {},  # its output layer has a bias
    "phi3": {},
    "smollm3": {},
}
# These are trained in padded rows alone. The first has experts, and sinks beside its attention.
NOT_PACKED: dict[str, dict[str, Any]] = {
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "xglm": {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4},
}
ALL = AFTER_THE_HEAD | NOTHING_AFTER | NOT_PACKED
BATCH = random_batch(seed=2)


def refusal(directory: Path, head: Head = "language-model") -> str:
    source = open_model(str(directory))
    with pytest.raises(SpecError) as caught:
        check_parts(source.build_empty(head=head), head=head, vocabulary=source.vocabulary)
    assert caught.value.field == "spec.model.path"
    return caught.value.problem


def logprobs(module: nn.Module, batch: TrainBatch, *, packing: bool) -> Tensor:
    settings = EngineSettings(packing=packing)
    output = model_output(
        module, batch, head="language-model", settings=settings, entropy=False
    ).logprobs
    assert output is not None
    return output[batch.mask]


@pytest.mark.parametrize("architecture", ALL)
def test_log_probabilities_are_those_of_transformers_own_forward(
    tmp_path: Path, architecture: str
) -> None:
    directory = write_model(tmp_path / "m", architecture, **ALL[architecture])
    library = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    built = open_model(str(directory)).build()
    every = library(BATCH.tokens).logits.float() / 0.7
    wanted = every.log_softmax(-1).gather(-1, BATCH.targets[..., None])[..., 0][BATCH.mask]
    packed = [(0, True)] if masks_packed_rows(built) else []
    for chunk, packing in (*packed, (5, False), (0, False)):
        module = with_head(built, "language-model", logprob_chunk=chunk, temperature=0.7)
        found = logprobs(module, BATCH, packing=packing)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    (-wanted.sum()).backward()
    (-found.sum()).backward()  # type: ignore[no-untyped-call]
    theirs = dict(library.named_parameters())
    for name, parameter in built.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", AFTER_THE_HEAD)
def test_what_these_compute_after_the_output_layer_shows(tmp_path: Path, architecture: str) -> None:
    directory = write_model(tmp_path / "m", architecture, **AFTER_THE_HEAD[architecture])
    built = open_model(str(directory)).build()
    hidden = hidden_states(built, BATCH.tokens)
    assert (logits(built, hidden) - output_layer(built)(hidden)).abs().max() > 1e-2


def test_those_that_are_packed_are_tested_above() -> None:
    assert {*AFTER_THE_HEAD, *NOTHING_AFTER} == MASKED_BY_POSITIONS


EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16},
    "mixtral": {"num_local_experts": 4},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "head_dim": 16,
    },
}

_FOUR = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    "moe_intermediate_size": 32,
    "head_dim": 16,
}
EXPERTS |= {
    "ernie4_5_moe": _FOUR,
    "granitemoe": _FOUR,
    "hunyuan_v1_moe": _FOUR,
    "jamba": {**_FOUR, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "minimax": _FOUR,
    "olmoe": _FOUR,
    "phimoe": _FOUR,
    "qwen2_moe": _FOUR,
    "qwen3_next": _FOUR,
    "dots1": {**_FOUR, "n_group": 1, "topk_group": 1, "n_shared_experts": 1},
}
HEADS = {"deepseek_v3", "minimax", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next"}


@pytest.mark.skipif(transformers.__version__ < "5", reason="4.57 does not join experts")
@pytest.mark.parametrize("architecture", EXPERTS)
def test_experts_that_are_stored_one_by_one_are_refused(tmp_path: Path, architecture: str) -> None:
    directory = write_model(tmp_path / "m", architecture, **EXPERTS[architecture])
    found = refusal(directory)
    assert re.fullmatch(
        f"the architecture {architecture} cannot be trained: it stores model.layers.* in another "
        "form than transformers' model holds it, which is not supported; name a model of another "
        "architecture",
        found,
    )
    with pytest.raises(SpecError, match=f"m: {architecture} stores model.layers.* in another form"):
        open_model(str(directory)).weights()
    if architecture in HEADS:  # of others transformers has no such head
        assert refusal(directory, "value") == found


FEW_TOKENS = {"vocab_size_per_layer_input": 16}  # of gemma4_text


@pytest.mark.parametrize(
    ("architecture", "problem"),
    [
        ("mamba", "has no cache of keys and values, which rollouts need"),
        ("gpt2", "has a decoder that is not one list of layers"),
        ("gemma4_text", "has a decoder that reads more than tokens and positions"),
        ("llama4_text", "has a decoder that is not one list of layers"),
    ],
)
def test_architectures_without_the_parts_that_training_needs_are_refused(
    tmp_path: Path, architecture: str, problem: str
) -> None:
    directory = write_model(tmp_path / "m", architecture, **FEW_TOKENS)
    found = refusal(directory)
    assert found.startswith(f"the architecture {architecture} cannot be trained: it {problem}")


@pytest.mark.skipif(transformers.__version__ < "5", reason="4.57 stores what its model holds")
def test_a_tensor_that_is_stored_by_another_name_is_refused(tmp_path: Path) -> None:
    found = refusal(write_model(tmp_path / "m", "gpt_neox"))
    assert "gpt_neox cannot be trained: it stores lm_head.weight in another form" in found


def test_what_transformers_cannot_build_is_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", "granite")
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "none of these"}))
    assert "config.json: transformers cannot build this granite: " in refusal(directory)


def test_a_head_that_transformers_has_not_is_refused(tmp_path: Path) -> None:
    found = refusal(write_model(tmp_path / "m", "granite"), "value")
    assert "config.json: transformers has no granite with the head value" in found


def test_a_dtype_that_torch_does_not_have_is_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", "qwen2")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"dtype": "float7"}))
    with pytest.raises(SpecError, match=r"config.json: dtype is 'float7'; name one of float32"):
        open_model(str(directory))
