"""Modules that megatron-core has only with other packages, in the form that its own have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


class RmsNorm(nn.Module):
    """RMSNorm as transformers computes it: in float32, and rounded before the weight is applied.

    Zhang and Sennrich 2019. Also where ranks divide the positions between them.
    """

    def __init__(
        self, *, config: TransformerConfig, hidden_size: int, eps: float, **_: Any
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        # Each rank sees its positions alone, so that Megatron has to add up the gradients.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._epsilon = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Of any shape; over the last dimension."""
        exact = hidden.float()
        scale = exact.square().mean(-1, keepdim=True).add(self._epsilon).rsqrt()
        return self.weight * (exact * scale).to(hidden.dtype)


class CausalAttention(nn.Module):
    """Grouped-query attention by torch, which has kernels that keep no scores in memory.

    megatron-core's own computes all scores, and rounds them to the model's type.
    """

    def __init__(self, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, _mask: None, **_: Any) -> Tensor:
        """[length, rows, heads, width], of keys and values fewer heads, to [length, rows, all]."""
        found = nn.functional.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            is_causal=True,
            scale=self._scale,
            enable_gqa=True,
        )
        return found.permute(2, 0, 1, 3).flatten(2)


class ValueHead(nn.Module):
    """One number for each position, instead of the output layer; each rank holds the whole."""

    def __init__(self, config: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(1)) if bias else None
        self._divided = config.sequence_parallel

    def forward(self, hidden: Tensor, **_: Any) -> tuple[Tensor, None]:
        """[length, rows, hidden] to [length, rows, 1], in the form of Megatron's output layers."""
        if self._divided:
            # What follows is the same on all ranks, so that each keeps its positions' gradients.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return nn.functional.linear(hidden, self.weight, self.bias), None
