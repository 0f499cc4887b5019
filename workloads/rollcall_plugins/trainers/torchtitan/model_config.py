"""torchtitan's model configuration for the `config.json` of a Hugging Face model.

Weights keep the layout that they have there. torchtitan's own Llama permutes the rows of the query
and key projections, as Meta's checkpoints do. Here its rotary embeddings are those of transformers,
so that no rank has to permute what it loads, sends or saves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import spmd_types as spmd
import torch
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.common.decoder_sharding import (
    dense_activation_placement,
    dense_param_placement,
)
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.param_init import skip_param_init
from torchtitan.models.common.rope import ComplexRoPE
from torchtitan.models.llama3 import parallelize_llama
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3 import parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.sharding import set_qwen3_sharding_config
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.sharding import ShardingConfig

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.train.train_engine import FIELD as ENGINE_FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn
    from torchtitan.models.common.decoder import Decoder, TransformerBlock
    from torchtitan.models.common.rope import RoPE
    from torchtitan.protocols.state_dict_adapter import StateDictAdapter

    from rollcall_runtime.models.model_source import Head

_LAYER = re.compile(r"\.(\d+)\.")
# Weights are loaded after the model is built.
_NOT_INITIALIZED = {"weight": skip_param_init, "bias": skip_param_init}
# What these models can have and torchtitan's cannot, with the value that switches it off.
_MUST_BE: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
}


class LlamaRoPE(CosSinRoPE):  # type: ignore[misc]
    """Rotary embeddings as transformers has them, with Llama 3.1's scaling of frequencies."""

    @dataclass(kw_only=True, slots=True)
    class Config(CosSinRoPE.Config):  # type: ignore[misc]
        """The settings of torchtitan's CosSinRoPE, and no others."""

    def _precompute_cache(self) -> Tensor:
        """Cosines and sines, [positions, 2 * head width]."""
        turns = ComplexRoPE._precompute_cache(self)  # noqa: SLF001 - the only place that scales
        return torch.cat([turns.real, turns.real, turns.imag, turns.imag], dim=-1)


def model_spec(
    config: Mapping[str, Any], *, head: Head = "language-model", sequence_parallel: bool = False
) -> ModelSpec:
    """What torchtitan knows of a model; `config` is the contents of its `config.json`.

    `sequence_parallel`: between attention and feed-forward each tensor-parallel rank has a part of
    every sequence. SpecError if torchtitan has no such model, or if it has something that
    torchtitan's lacks.
    """
    kind = config.get("model_type")
    for name, value in _MUST_BE.items():
        if config.get(name) not in {None, value}:
            raise _lacking(name, config[name])
    if kind == "qwen3":
        model = Qwen3Model.Config(**_decoder(config, Qwen3TransformerBlock, head_norms=True))
        set_qwen3_sharding_config(model, enable_sp=sequence_parallel, enable_ep=False)
        spec = _spec(model, parallelize_qwen3, Qwen3StateDictAdapter)
    elif kind in {"llama", "qwen2"}:
        model = Llama3Model.Config(**_decoder(config, Llama3TransformerBlock, head_norms=False))
        set_llama3_sharding_config(model, enable_sp=sequence_parallel)
        if kind == "qwen2":  # a Llama whose queries, keys and values have biases
            for layer in model.layers:
                layer.attention.qkv_linear.wq.bias = layer.attention.qkv_linear.wkv.bias = True
        spec = _spec(model, parallelize_llama, Llama3StateDictAdapter)
    else:
        raise SpecError(
            FIELD,
            f"the training engine torchtitan has no {kind!r} model, only llama, qwen2 and qwen3; "
            f"set {ENGINE_FIELD}.name to fsdp2",
        )
    if head != "language-model":
        _give_numbers(model, bias=head == "value")
    return spec


def _give_numbers(model: Decoder.Config, *, bias: bool) -> None:
    """Replace the output layer by one that gives a number; all tensor-parallel ranks compute it."""
    model.enable_weight_tying = False
    whole = dense_activation_placement(tp=spmd.R)
    placement = dense_param_placement(tp=spmd.R)
    model.lm_head = Linear.Config(
        in_features=model.dim,
        out_features=1,
        bias=bias,
        param_init=_NOT_INITIALIZED,
        sharding_config=ShardingConfig(
            state_shardings={"weight": placement, "bias": placement},
            in_src_shardings={"input": whole},
            in_dst_shardings={"input": whole},
            out_src_shardings=whole,
            out_dst_shardings=whole,
        ),
    )


def _spec(
    model: Decoder.Config, parallelize: Callable[..., nn.Module], adapter: type[StateDictAdapter]
) -> ModelSpec:
    return ModelSpec(
        name=type(model).__qualname__,
        flavor="",
        model=model,
        parallelize_fn=parallelize,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=adapter,
    )


def parameter_names(spec: ModelSpec) -> dict[str, str]:
    """The name of every parameter in torchtitan, with Hugging Face's; embeddings come first.

    A tied output layer has no name of its own.
    """
    templates = spec.state_dict_adapter(spec.model, None).from_hf_map
    own = {ours: theirs for theirs, ours in templates.items() if ours is not None}
    for part in "qkv":
        bias = f"layers.{{}}.attention.qkv_linear.w{part}.bias"
        own[bias] = f"model.layers.{{}}.self_attn.{part}_proj.bias"
    if spec.model.lm_head.out_features != spec.model.vocab_size:
        own |= {"lm_head.weight": "score.weight", "lm_head.bias": "score.bias"}
    with torch.device("meta"):
        model = spec.model.build()
    found = {}
    for name in model.state_dict():
        if name == "lm_head.weight" and spec.model.enable_weight_tying:
            continue
        number = _LAYER.search(name)
        template = own[_LAYER.sub(".{}.", name)]
        found[name] = template.format(number[1]) if number else template
    return found


def _decoder(
    config: Mapping[str, Any], block: type[TransformerBlock], *, head_norms: bool
) -> dict[str, Any]:
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    return {
        "dim": width,
        "vocab_size": vocabulary,
        "enable_weight_tying": bool(config.get("tie_word_embeddings", False)),
        "tok_embeddings": Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=_NOT_INITIALIZED
        ),
        "norm": _norm(config, width),
        "lm_head": Linear.Config(
            in_features=width, out_features=vocabulary, param_init=_NOT_INITIALIZED
        ),
        "layers": [
            _layer(config, block, head_norms=head_norms) for _ in range(config["num_hidden_layers"])
        ],
    }


def _layer(
    config: Mapping[str, Any], block: type[TransformerBlock], *, head_norms: bool
) -> TransformerBlock.Config:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head_width = config.get("head_dim") or width // heads
    return block.Config(
        attention_norm=_norm(config, width),
        ffn_norm=_norm(config, width),
        attention=make_gqa_config(
            dim=width,
            n_heads=heads,
            n_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_width,
            wqkv_param_init=_NOT_INITIALIZED,
            wo_param_init=_NOT_INITIALIZED,
            # Rows are padded on the right, where the causal mask is all that is needed.
            inner_attention=ScaledDotProductAttention.Config(),
            fuse_qkv=False,
            rope=_rope(config, head_width),
            qk_norm=_norm(config, head_width) if head_norms else None,
        ),
        feed_forward=make_ffn_config(
            dim=width,
            hidden_dim=config["intermediate_size"],
            w1_param_init=_NOT_INITIALIZED,
            w2w3_param_init=_NOT_INITIALIZED,
        ),
    )


def _norm(config: Mapping[str, Any], width: int) -> RMSNorm.Config:
    return RMSNorm.Config(
        normalized_shape=width, eps=config["rms_norm_eps"], param_init=_NOT_INITIALIZED
    )


def _rope(config: Mapping[str, Any], head_width: int) -> RoPE.Config:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling` before transformers 5."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    sizes: dict[str, Any] = {
        "dim": head_width,
        "max_seq_len": config["max_position_embeddings"],
        "theta": float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
    }
    if kind == "default":
        return CosSinRoPE.Config(**sizes)
    if kind == "llama3":
        return LlamaRoPE.Config(
            **sizes,
            scaling="llama",
            scaling_factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_max_position_embeddings=rope["original_max_position_embeddings"],
        )
    raise _lacking("rope_type", kind)


def _lacking(name: str, value: object) -> SpecError:
    return SpecError(
        FIELD,
        f"config.json has {name} {value!r}, which the models of the training engine torchtitan "
        f"lack; set {ENGINE_FIELD}.name to fsdp2",
    )
