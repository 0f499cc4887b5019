"""Causal attention of each sequence of a row by itself, without a mask.

A mask for a packed row has a row and a column for each of its positions, and attention computes all
of them: the square of the whole row. Sequence by sequence it is the sum of the squares. Where torch
has a kernel for that, it computes all sequences at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_protocol.train_settings import Attention
from rollcall_runtime.models import varlen_attention

if TYPE_CHECKING:
    from torch import Tensor

BY_SEQUENCE = "rollcall_by_sequence"
"""What transformers calls this attention."""


class SharingRanks(Protocol):
    """Ranks that share the positions of rows, and divide the heads while attention is computed."""

    def own_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[rows, heads, own positions, width] as [rows, own heads, positions, width]."""

    def own_positions(self, mixed: Tensor) -> Tensor:
        """[rows, positions, own heads, width] as [rows, own positions, heads, width]."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Sequences of `lengths` stand one after the other in every row, and add up to its positions.

    `ranks` share these positions; None: this rank has them all. `attention` is the engine's
    setting of that name. An object, so that layers that are compiled do not look into it: they
    would be compiled anew for each other number of sequences.
    """

    lengths: tuple[int, ...]
    ranks: SharingRanks | None = None
    attention: str = Attention.AUTO


def attend_by_sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    *,
    scale: float | None = None,
    window: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Mix values for each position, up to its own in its sequence.

    `query` [rows, heads, positions, width]; `key` and `value` may have fewer heads, each for as
    many heads of `query`, one after the other. `window`: a position sees so many, itself included
    (None: all). Returns [rows, positions, heads, width]. Collective if ranks share the positions.
    """
    return _attend(query, key, value, layout, scale=scale, window=window, dropout=dropout)


def leave_uncompiled() -> None:
    """Keep torch's compiler out of `attend_by_sequence`; call this before layers are compiled.

    It would compile them anew for each other number of sequences. A decorator would load the
    compiler, a second or two of processor time, in every worker.
    """
    global _attend  # noqa: PLW0603  # there is one compiler
    _attend = torch.compiler.disable(_attend)  # type: ignore[no-untyped-call]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: RowLayout,
    *,
    scale: float | None,
    window: int | None,
    dropout: float,
) -> Tensor:
    if layout.ranks is not None:
        query, key, value = layout.ranks.own_heads(query, key, value)
    lengths = layout.lengths
    if varlen_attention.is_usable(query, layout.attention, dropout=dropout):
        whole = varlen_attention.attend(
            query, key, value, lengths, layout.attention, scale=scale, window=window
        )
    else:
        whole = _one_by_one(query, key, value, lengths, scale=scale, window=window, dropout=dropout)
    return whole if layout.ranks is None else layout.ranks.own_positions(whole)


def _one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: tuple[int, ...],
    *,
    scale: float | None,
    window: int | None,
    dropout: float,
) -> Tensor:
    parts = (torch.split(tensor, list(lengths), dim=2) for tensor in (query, key, value))
    mixed = []
    for of_query, of_key, of_value in zip(*parts, strict=True):
        mask = _window_mask(of_query, window)
        one = F.scaled_dot_product_attention(
            of_query,
            of_key,
            of_value,
            attn_mask=mask,
            is_causal=mask is None,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        mixed.append(one.transpose(1, 2))
    return torch.cat(mixed, dim=1)


def _window_mask(query: Tensor, window: int | None) -> Tensor | None:
    """Who sees whom, bool [positions, positions]; None if the window bounds nothing."""
    positions = query.shape[2]
    if window is None or positions <= window:
        return None
    every = torch.ones(positions, positions, dtype=torch.bool, device=query.device)
    return every.tril().triu(1 - window)
