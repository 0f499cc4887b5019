"""How the parameters of megatron-core's GPTModel correspond to Hugging Face's tensors.

Each Megatron parameter holds one or several Hugging Face tensors. A tensor-parallel rank has a part
of each, and the functions here convert its own part, so that nothing is gathered. The names on both
sides are those of megatron-core 0.16 and of transformers' Llama, Qwen2 and Qwen3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from rollcall_plugins.trainers.megatron.hf_config import Architecture


EMBEDDING = "model.embed_tokens.weight"
OUTPUT_LAYER = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class HfTensor:
    """A tensor of the Hugging Face model: its whole shape.

    Tensor-parallel ranks hold successive parts along `dim`; None: each rank holds the whole.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None

    def part(self, rank: int, size: int) -> tuple[int, int]:
        """Start and end along `dim` of what `rank` of `size` holds: as torch.chunk cuts it."""
        if self.dim is None:
            raise ValueError(f"{self.name} is not divided")
        length = self.shape[self.dim]
        chunk = -(-length // size)
        return min(rank * chunk, length), min((rank + 1) * chunk, length)


@dataclass(frozen=True, slots=True)
class ParameterMapping(ABC):
    """One Megatron parameter: which `tensors` it holds, and how.

    Split and joined are a rank's own parts, of the parameter or of optimizer state of its shape.
    """

    tensors: tuple[HfTensor, ...]

    @abstractmethod
    def split(self, local: Tensor) -> tuple[Tensor, ...]:
        """The parts of `tensors` that are in a part of the parameter; views where possible."""

    @abstractmethod
    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""

    @property
    def dim(self) -> int | None:
        """The dimension along which the ranks divide the parameter; None: each holds the whole."""
        return self.tensors[0].dim


class SameTensor(ParameterMapping):
    """The parameter is the Hugging Face tensor."""

    def split(self, local: Tensor) -> tuple[Tensor, ...]:
        return (local,)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0]


class GateUp(ParameterMapping):
    """`linear_fc1` of SwiGLU: each rank has rows of the gate, then rows of the up projection."""

    def split(self, local: Tensor) -> tuple[Tensor, ...]:
        return local.chunk(2)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts))


@dataclass(frozen=True, slots=True)
class QueryKeyValue(ParameterMapping):
    """`linear_qkv`: for each key-value group the rows of its queries, its key and its value."""

    queries: int
    head_dim: int

    def split(self, local: Tensor) -> tuple[Tensor, ...]:
        rows = self.queries + 2
        groups = local.reshape(-1, rows, self.head_dim, *local.shape[1:])
        parts = torch.split(groups, [self.queries, 1, 1], dim=1)
        return tuple(part.flatten(0, 2) for part in parts)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        heads = (self.queries, 1, 1)
        groups = [
            part.reshape(-1, count, self.head_dim, *part.shape[1:])
            for part, count in zip(parts, heads, strict=True)
        ]
        return torch.cat(groups, dim=1).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class VocabularyRows(ParameterMapping):
    """An embedding or output layer, whose rows Megatron pads to a multiple of the ranks.

    `own_rows`: how many of this rank's rows exist. The others are zero, and stay zero.
    """

    own_rows: int
    padded_rows: int

    def split(self, local: Tensor) -> tuple[Tensor, ...]:
        return (local[: self.own_rows],)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        padded = parts[0].new_zeros(self.padded_rows, *parts[0].shape[1:])
        padded[: self.own_rows] = parts[0]
        return padded


def padded_vocabulary(vocabulary: int, ranks: int) -> int:
    """Rows of the embedding that `ranks` divide evenly."""
    return -(-vocabulary // ranks) * ranks


def parameter_mappings(
    architecture: Architecture, *, rank: int, size: int, first_layer: int = 0
) -> dict[str, ParameterMapping]:
    """By Megatron's parameter name, for tensor-parallel `rank` of `size`.

    `first_layer`: of a pipeline stage, which counts its layers from 0.
    """
    vocabulary = (architecture.vocabulary, architecture.hidden)
    embedding = _rows(EMBEDDING, vocabulary, rank, size)
    norm = SameTensor((HfTensor("model.norm.weight", (architecture.hidden,)),))
    output = _rows(OUTPUT_LAYER, vocabulary, rank, size)
    found: dict[str, ParameterMapping] = {
        "embedding.word_embeddings.weight": embedding,
        "decoder.final_layernorm.weight": norm,
        # A last stage without the embedding holds a copy of it, if the output layer is tied to it.
        "output_layer.weight": embedding if architecture.tied else output,
    }
    for layer in range(architecture.layers - first_layer):
        prefix = f"model.layers.{first_layer + layer}"
        of_layer = [*_attention(architecture, prefix), *_feed_forward(architecture, prefix)]
        found |= {f"decoder.layers.{layer}.{name}": mapping for name, mapping in of_layer}
    return found


def _rows(name: str, shape: tuple[int, int], rank: int, size: int) -> VocabularyRows:
    tensor = HfTensor(name, shape, 0)
    start, end = tensor.part(rank, size)
    return VocabularyRows((tensor,), end - start, padded_vocabulary(shape[0], size) // size)


def _attention(made: Architecture, prefix: str) -> Iterator[tuple[str, ParameterMapping]]:
    width, heads, groups = made.head_dim, made.heads, made.groups
    norm = SameTensor((HfTensor(f"{prefix}.input_layernorm.weight", (made.hidden,)),))
    yield "input_layernorm.weight", norm
    for kind, columns in (("weight", (made.hidden,)), ("bias", ())):
        tensors = tuple(
            HfTensor(f"{prefix}.self_attn.{name}_proj.{kind}", (rows * width, *columns), 0)
            for name, rows in (("q", heads), ("k", groups), ("v", groups))
        )
        mapping = QueryKeyValue(tensors, queries=heads // groups, head_dim=width)
        yield f"self_attention.linear_qkv.{kind}", mapping
    output = HfTensor(f"{prefix}.self_attn.o_proj.weight", (made.hidden, heads * width), 1)
    yield "self_attention.linear_proj.weight", SameTensor((output,))
    for name in ("q", "k"):
        tensor = HfTensor(f"{prefix}.self_attn.{name}_norm.weight", (width,))
        yield f"self_attention.{name}_layernorm.weight", SameTensor((tensor,))


def _feed_forward(made: Architecture, prefix: str) -> Iterator[tuple[str, ParameterMapping]]:
    norm = SameTensor((HfTensor(f"{prefix}.post_attention_layernorm.weight", (made.hidden,)),))
    yield "pre_mlp_layernorm.weight", norm
    wide = (made.intermediate, made.hidden)
    gate_up = tuple(
        HfTensor(f"{prefix}.mlp.{name}_proj.weight", wide, 0) for name in ("gate", "up")
    )
    yield "mlp.linear_fc1.weight", GateUp(gate_up)
    down = HfTensor(f"{prefix}.mlp.down_proj.weight", wide[::-1], 1)
    yield "mlp.linear_fc2.weight", SameTensor((down,))
