"""What a Hugging Face config.json says of a dense decoder, in the terms that Megatron needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELD = "spec.model.path"

# What megatron-core has constants for in its scaling of Llama 3's rotary frequencies.
_LLAMA3_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with rotary positions, RMSNorm, grouped-query attention and SwiGLU.

    `groups`: key-value heads. `rope_factor`: Llama 3's scaling of the rotary frequencies, None for
    none. `qkv_bias`: of the query, key and value projections; nothing else has one. `softmax_scale`
    of the attention scores, None for 1 / sqrt(head_dim).
    """

    model_type: str
    layers: int
    hidden: int
    heads: int
    groups: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    norm_epsilon: float
    rope_base: float
    rope_factor: float | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    softmax_scale: float | None = None


def read_dense_decoder(config: Mapping[str, Any], **differences: Any) -> Architecture:
    """The architecture that `config` describes, with `differences` from Llama's.

    `config` has its defaults filled in, as `PretrainedConfig.to_dict` gives it. SpecError for what
    this engine does not compute: other activations, biases, dropout, windows, rotary scalings.
    """
    for key, wanted in (
        ("hidden_act", "silu"),
        ("attention_dropout", 0.0),
        ("mlp_bias", False),
        ("attention_bias", False),
        ("use_sliding_window", False),
    ):
        if config.get(key, wanted) != wanted:
            raise _not_computed(f"{key} {config[key]!r} (it computes {wanted!r})")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise _not_computed("layer_types other than full_attention")
    base, factor = _rope(config)
    return Architecture(
        model_type=config["model_type"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        groups=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        rope_base=base,
        rope_factor=factor,
        tied=bool(config.get("tie_word_embeddings", False)),
        **differences,
    )


def _rope(config: Mapping[str, Any]) -> tuple[float, float | None]:
    """Base and factor; transformers 5 keeps in `rope_parameters` what 4 had in two keys."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return base, None
    if kind != "llama3" or any(rope.get(key) != value for key, value in _LLAMA3_ROPE.items()):
        raise _not_computed(f"rotary scaling {kind!r} with {rope}")
    return base, float(rope["factor"])


def check_parallel(architecture: Architecture, *, tensor: int = 1, pipeline: int = 1) -> None:
    """SpecError if so many ranks cannot divide heads, widths and layers between them."""
    for setting, size, name, number in (
        ("tensorParallel", tensor, "num_attention_heads", architecture.heads),
        ("tensorParallel", tensor, "num_key_value_heads", architecture.groups),
        ("tensorParallel", tensor, "intermediate_size", architecture.intermediate),
        ("pipelineParallel", pipeline, "num_hidden_layers", architecture.layers),
    ):
        if number % size:
            raise SpecError(
                f"spec.trainer.engine.config.{setting}",
                f"{size} ranks cannot share the model's {number} {name} evenly: "
                f"use a divisor of {number}",
            )


def _not_computed(what: str) -> SpecError:
    return SpecError(
        FIELD, f"the engine megatron has no {what}: use the engine fsdp2, or another model"
    )
