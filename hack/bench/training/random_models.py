"""Models with random weights in Hugging Face's format, of sizes that two cores can train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

# By name: 20 million parameters, and SmolLM2-135M's shape.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-20m": {
        "model_type": "qwen3",
        "vocab_size": 8192,
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_hidden_layers": 10,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "llama-135m": {
        "model_type": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}


def write_random_model(directory: Path, shape: str) -> int:
    """Write the model of SHAPES, in float32; returns the number of its parameters."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPES[shape])
    model = cast("Any", AutoModelForCausalLM).from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
