"""A small vLLM in this process, and the model that it serves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.plugins.inference.vllm.inside.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def make_model(seed: int, *, tied: bool) -> Qwen2ForCausalLM:
    """A random model of some 0.7 million parameters, in float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=2,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zeros otherwise, which would hide one that is not loaded
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module", params=["tied", "untied"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedModel]:
    tied = request.param == "tied"
    folder: Path = tmp_path_factory.mktemp(request.param)
    make_model(0, tied=tied).save_pretrained(folder)
    model = ServedModel(folder, first=make_model(0, tied=tied), second=make_model(1, tied=tied))
    yield model
    model.close()
