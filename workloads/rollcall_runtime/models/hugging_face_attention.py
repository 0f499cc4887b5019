"""Attention by sequence in models of transformers, as one of its attention functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from transformers import AttentionInterface

from rollcall_runtime.models.hugging_face import TESTED
from rollcall_runtime.models.sequence_attention import BY_SEQUENCE, RowLayout, attend_by_sequence

if TYPE_CHECKING:
    from torch import Tensor, nn


def use_attention_by_sequence(model: nn.Module) -> bool:
    """Have a model of a tested architecture read `row_layout` instead of masks; else False.

    Other architectures may bound who sees whom in ways that `attend_by_sequence` does not have.
    """
    built = cast("Any", model)
    if built.config.model_type not in TESTED:
        return False
    built.set_attn_implementation(BY_SEQUENCE)
    return True


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,  # transformers makes none for a name without a function for masks
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    row_layout: RowLayout | None = None,
    **_others: object,
) -> tuple[Tensor, None]:
    mixed = attend_by_sequence(
        query,
        key,
        value,
        row_layout or RowLayout((query.shape[2],)),
        scale=scaling,
        window=sliding_window,
        dropout=dropout,
    )
    return mixed, None


AttentionInterface.register(BY_SEQUENCE, _attention)
