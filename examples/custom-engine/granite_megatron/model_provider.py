"""Patches megatron-core's GPTModel into a Granite (transformers' model_type `granite`).

Granite is a Llama with four factors: of the embeddings, the attention scores, what a layer adds to
the residual stream, and the logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor

from rollcall_plugins.trainers.megatron.hf_config import Architecture, read_dense_decoder
from rollcall_plugins.trainers.megatron.model_provider import ModelOptions, ModelProvider
from rollcall_runtime.models.model_source import Head


@dataclass(frozen=True, slots=True)
class GraniteArchitecture(Architecture):
    """The factor of the attention scores is `softmax_scale`, which Megatron knows by itself."""

    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0


def read_granite(config: Mapping[str, Any]) -> GraniteArchitecture:
    """From a config.json of transformers' Granite."""
    llama = read_dense_decoder(config, softmax_scale=config["attention_multiplier"])
    return GraniteArchitecture(
        **asdict(llama),
        embedding_multiplier=config["embedding_multiplier"],
        residual_multiplier=config["residual_multiplier"],
        logits_scaling=config["logits_scaling"],
    )


class GraniteModel(GPTModel):
    """GPTModel with factors before its first layer and after its last."""

    embedding_multiplier = 1.0
    logits_scaling = 1.0

    def _preprocess(self, *args: Any, **options: Any) -> tuple[Any, ...]:
        embeddings, *rest = super()._preprocess(*args, **options)
        return (embeddings * self.embedding_multiplier, *rest)

    def _postprocess(self, *args: Any, **options: Any) -> Tensor:
        found: Tensor = super()._postprocess(*args, **options)
        return found / self.logits_scaling


def scaled_residual(multiplier: float) -> Callable[..., Any]:
    """What Megatron calls after attention and MLP, in the form of its `get_bias_dropout_add`."""

    def add(output: tuple[Tensor, None], residual: Tensor, _dropout: float) -> Tensor:
        return residual + output[0] * multiplier

    return lambda _training, _fused: add


class GraniteProvider(ModelProvider):
    """Adds the architecture `granite`. Weights need no mapping of their own: they are Llama's."""

    readers: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], Architecture]]] = {
        **ModelProvider.readers,
        "granite": read_granite,
    }
    model_class: ClassVar[type[GPTModel]] = GraniteModel

    def build(self, architecture: Architecture, options: ModelOptions, *, head: Head) -> GPTModel:
        """As for other architectures; those without factors have 1."""
        model = super().build(architecture, options, head=head)
        if isinstance(architecture, GraniteArchitecture):
            model.embedding_multiplier = architecture.embedding_multiplier
            if head == "language-model":
                model.logits_scaling = architecture.logits_scaling
        return model

    def layer_spec(self, architecture: Architecture) -> ModuleSpec:
        """Megatron's layer, with the factor of the residual stream."""
        spec = super().layer_spec(architecture)
        if isinstance(architecture, GraniteArchitecture):
            scaled = scaled_residual(architecture.residual_multiplier)
            spec.submodules.self_attn_bda = spec.submodules.mlp_bda = scaled
        return spec
