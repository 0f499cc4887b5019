"""A small vLLM in this process, and the model that it serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import torch
from transformers import (
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.plugins.inference.vllm.inside.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Model = TypeVar("_Model", bound=PreTrainedModel)


def pytest_configure() -> None:
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def make_model(seed: int, *, tied: bool) -> Qwen2ForCausalLM:
    """A random model of some 0.7 million parameters, in float32."""
    torch.manual_seed(seed)
    return _with_biases(Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=tied)))


def make_moe_model(seed: int) -> Qwen3MoeForCausalLM:
    """As `make_model`, with four experts in each layer, of which two serve a token."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(**_SIZES, **_EXPERTS, norm_topk_prob=True, tie_word_embeddings=False)
    return _with_biases(Qwen3MoeForCausalLM(config))


def _with_biases(model: _Model) -> _Model:
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zeros otherwise, which would hide one that is not loaded
            torch.nn.init.normal_(parameter, std=0.1)
    return model


MADE: dict[str, Callable[[int], PreTrainedModel]] = {
    "tied": lambda seed: make_model(seed, tied=True),
    "untied": lambda seed: make_model(seed, tied=False),
    "moe": make_moe_model,
}


@pytest.fixture(scope="module", params=list(MADE))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedModel]:
    make, folder = MADE[request.param], tmp_path_factory.mktemp(request.param)
    make(0).save_pretrained(folder)
    model = ServedModel(folder, first=make(0), second=make(1))
    yield model
    model.close()
