"""Broadcasts a batch from rank 0, which gets it from the rollouts, to all ranks of a trainer."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from rollcall_runtime.train.batch import Batch

if TYPE_CHECKING:
    from rollcall_runtime.train.process_group import TrainerProcessGroup


class LeaderSignal(IntEnum):
    """What rank 0 broadcasts instead of a batch."""

    IDLE = -1  # nothing to do yet, ask again; sent before the group's timeout runs out
    STOP = -2  # training is over
    BEGIN = -3  # take rank 0's weights if it has other ones, and copy them for the first version


def broadcast_work(
    group: TrainerProcessGroup, work: Batch | LeaderSignal | None
) -> Batch | LeaderSignal:
    """Collective. Rank 0 gives `work`; every rank gets its rows of the batch, or the signal.

    All ranks get equally many rows: the batch is filled up with rows that are masked out. Proximal
    log-probabilities are left behind, as every rank computes those of its own rows. ValueError on
    rank 0 without work.
    """
    if group.rank > 0:
        return _receive(group)
    if work is None:
        raise ValueError("rank 0 must give a batch or a signal")
    if isinstance(work, LeaderSignal):
        group.broadcast(torch.tensor([int(work), 0]))
        return work
    filled = _fill(work, -work.rows % group.size)
    group.broadcast(torch.tensor([filled.rows, filled.tokens.shape[1]]))
    _broadcast(group, filled)
    return _own(group, filled)


def _receive(group: TrainerProcessGroup) -> Batch | LeaderSignal:
    rows, length = group.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
    if rows < 0:
        return LeaderSignal(rows)
    batch = Batch(
        tokens=torch.empty(rows, length, dtype=torch.int64),
        mask=torch.empty(rows, length - 1, dtype=torch.bool),
        logprobs=torch.empty(rows, length - 1),
        versions=torch.empty(rows, length - 1, dtype=torch.int64),
        advantages=torch.empty(rows),
    )
    _broadcast(group, batch)
    return _own(group, batch)


def _broadcast(group: TrainerProcessGroup, batch: Batch) -> None:
    # gloo moves no bool.
    for tensor in (batch.tokens, batch.mask.view(torch.uint8), batch.logprobs, batch.versions):
        group.broadcast(tensor)
    group.broadcast(batch.advantages)


def _own(group: TrainerProcessGroup, batch: Batch) -> Batch:
    each = batch.rows // group.size
    return batch.slice(group.rank * each, (group.rank + 1) * each)


def _fill(batch: Batch, rows: int) -> Batch:
    below = (0, 0, 0, rows)
    return Batch(
        tokens=pad(batch.tokens, below),
        mask=pad(batch.mask, below),
        logprobs=pad(batch.logprobs, below),
        versions=pad(batch.versions, below, value=-1),
        advantages=pad(batch.advantages, (0, rows)),
    )
