"""Builds megatron-core's GPTModel for a Hugging Face architecture.

A fork of Megatron that patches the model replaces this one class: examples/custom-engine shows how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

from rollcall_plugins.trainers.megatron import hf_mapping
from rollcall_plugins.trainers.megatron.hf_config import (
    FIELD,
    Architecture,
    read_dense_decoder,
)
from rollcall_plugins.trainers.megatron.modules import CausalAttention, RmsNorm, ValueHead
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from megatron.core.transformer.spec_utils import ModuleSpec

    from rollcall_plugins.trainers.megatron.hf_mapping import ParameterMapping
    from rollcall_runtime.models.model_source import Head

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What of the engine's settings changes the model."""

    tensor_parallel: int
    sequence_parallel: bool
    precision: str
    recompute: bool
    deterministic: bool
    pipeline_parallel: int = 1
    stage: int = 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank holds the output layer."""
        return self.stage == self.pipeline_parallel - 1

    def layers(self, architecture: Architecture) -> int:
        """How many layers each pipeline stage holds."""
        return architecture.layers // self.pipeline_parallel

    def first_layer(self, architecture: Architecture) -> int:
        """The number of the first layer that this rank's stage holds."""
        return self.stage * self.layers(architecture)


class ModelProvider:
    """The models of the engine `megatron`: dense decoders of the families in `readers`.

    `readers`: by the `model_type` of a config.json, what reads the rest of it. `model_class`: made
    with GPTModel's arguments.
    """

    readers: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], Architecture]]] = {
        "llama": read_dense_decoder,
        "qwen2": lambda config: read_dense_decoder(config, qkv_bias=True),
        "qwen3": lambda config: read_dense_decoder(config, qk_norm=True),
    }
    model_class: ClassVar[type[GPTModel]] = GPTModel

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """What `config`, a config.json with its defaults, describes. SpecError if it is unknown."""
        reader = self.readers.get(config.get("model_type", ""))
        if reader is None:
            raise SpecError(
                FIELD,
                f"this engine does not know the architecture {config.get('model_type')!r}: it has "
                f"{', '.join(sorted(self.readers))}; the engine fsdp2 takes what transformers has",
            )
        return reader(config)

    def build(self, architecture: Architecture, options: ModelOptions, *, head: Head) -> GPTModel:
        """The part of the model that this rank holds, on the worker's device and without weights.

        megatron-core's process groups (`shared_groups`) have to be there.
        """
        valued = head != "language-model"
        layers = [self.layer_spec(architecture)] * options.layers(architecture)
        config = self.transformer_config(architecture, options)
        model = self.model_class(
            config=config,
            transformer_layer_spec=TransformerBlockSubmodules(layers, layer_norm=RmsNorm),
            vocab_size=hf_mapping.padded_vocabulary(
                architecture.vocabulary, options.tensor_parallel
            ),
            max_sequence_length=architecture.context,
            pre_process=options.stage == 0,
            post_process=options.last_stage,
            position_embedding_type="rope",
            rotary_base=architecture.rope_base,
            rope_scaling=architecture.rope_factor is not None,
            rope_scaling_factor=architecture.rope_factor or 1.0,
            share_embeddings_and_output_weights=architecture.tied and not valued,
        )
        if valued and options.last_stage:
            model.output_layer = ValueHead(config, bias=head == "value")
        return model.to(device=torch.cuda.current_device(), dtype=_DTYPES[options.precision])

    def transformer_config(
        self, architecture: Architecture, options: ModelOptions
    ) -> TransformerConfig:
        """Megatron's configuration. Fusions that need other packages are off."""
        recompute: dict[str, Any] = {}
        if options.recompute:
            recompute = {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            }
        return TransformerConfig(
            num_layers=architecture.layers,
            hidden_size=architecture.hidden,
            num_attention_heads=architecture.heads,
            num_query_groups=architecture.groups,
            kv_channels=architecture.head_dim,
            ffn_hidden_size=architecture.intermediate,
            normalization="RMSNorm",
            layernorm_epsilon=architecture.norm_epsilon,
            qk_layernorm=architecture.qk_norm,
            softmax_scale=architecture.softmax_scale,
            gated_linear_unit=True,
            activation_func=nn.functional.silu,
            add_bias_linear=False,
            add_qkv_bias=architecture.qkv_bias,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tensor_model_parallel_size=options.tensor_parallel,
            sequence_parallel=options.sequence_parallel,
            pipeline_model_parallel_size=options.pipeline_parallel,
            pipeline_dtype=_DTYPES[options.precision],
            variable_seq_lengths=options.pipeline_parallel > 1,
            # The default refuses lengths that vary, without experts too.
            moe_token_dispatcher_type="alltoall",  # noqa: S106 - no password
            params_dtype=_DTYPES[options.precision],
            bf16=options.precision == "bf16",
            # The weights come from the model's files.
            perform_initialization=False,
            # A loss is divided by its own denominator, so that gradients are summed over ranks.
            calculate_per_token_loss=True,
            deterministic_mode=options.deterministic,
            **recompute,
        )

    def layer_spec(self, architecture: Architecture) -> ModuleSpec:
        """The modules of one layer: megatron-core's own, where these need no other package."""
        spec = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
        modules, attention = spec.submodules, spec.submodules.self_attention.submodules
        modules.input_layernorm = modules.pre_mlp_layernorm = RmsNorm
        attention.core_attention = CausalAttention
        if architecture.qk_norm:
            attention.q_layernorm = attention.k_layernorm = RmsNorm
        return spec

    def mappings(
        self, architecture: Architecture, *, head: Head, rank: int, size: int, first_layer: int
    ) -> dict[str, ParameterMapping]:
        """By Megatron's parameter name, the Hugging Face tensors that `rank` of `size` holds.

        Of a pipeline stage whose first layer is this one.
        """
        found = hf_mapping.parameter_mappings(
            architecture, rank=rank, size=size, first_layer=first_layer
        )
        if head != "language-model":
            # transformers' classes for one class of a token (value) or of a sequence.
            for kind, shape in (("weight", (1, architecture.hidden)), ("bias", (1,))):
                score = hf_mapping.HfTensor(f"score.{kind}", shape)
                found[f"output_layer.{kind}"] = hf_mapping.SameTensor((score,))
        return found
