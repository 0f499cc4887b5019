"""What a model reads of a batch: its rows with padding, or packed into one row without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_protocol.train_settings import Attention
from rollcall_runtime.models.sequence_attention import RowLayout

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class HeadInput:
    """`tokens`, `targets` (int64) and `mask` (bool), [rows, length] or packed [1, all positions].

    Without `positions` they count from 0 in each row; in packed rows they restart. `layout`: where
    the sequences of packed rows stand, or of rows that ranks share.
    """

    tokens: Tensor
    targets: Tensor
    mask: Tensor
    positions: Tensor | None = None
    layout: RowLayout | None = None


def padded_input(batch: TrainBatch) -> HeadInput:
    """The rows as they are: what stands before padding on the right does not see it."""
    return HeadInput(batch.tokens, batch.targets, batch.mask)


def packed_input(batch: TrainBatch, attention: str = Attention.AUTO) -> HeadInput:
    """All rows one after the other; `attention` is the engine's setting."""
    there = occupied(batch)
    places = torch.arange(batch.tokens.shape[1], device=there.device).expand_as(there)
    return HeadInput(
        tokens=batch.tokens[there][None],
        targets=batch.targets[there][None],
        mask=batch.mask[there][None],
        positions=places[there][None],
        layout=RowLayout(tuple(batch.lengths.tolist()), attention=attention),
    )


def unpacked(values: Tensor, batch: TrainBatch) -> Tensor:
    """[1, all positions] of `packed_input` as [rows, length] of `batch`, 0 in the padding."""
    there = occupied(batch)
    rows = values.new_zeros(there.shape)
    return rows.masked_scatter(there, values)


def occupied(batch: TrainBatch) -> Tensor:
    """Where there is no padding, bool [rows, length]."""
    places = torch.arange(batch.tokens.shape[1], device=batch.lengths.device)
    return places < batch.lengths[:, None]
