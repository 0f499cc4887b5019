"""Handing a batch from rank 0, which talks to the rollouts, to all ranks of a trainer."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from rollcall_runtime.train.batch import Batch

if TYPE_CHECKING:
    from rollcall_runtime.train.process_group import World


class Signal(IntEnum):
    """What rank 0 says instead of a batch."""

    IDLE = -1  # nothing to do yet, ask again; sent before the group's timeout runs out
    STOP = -2  # training is over
    BEGIN = -3  # take rank 0's weights if it has other ones, and copy them for the first version


def share(world: World, work: Batch | Signal | None) -> Batch | Signal:
    """Collective. Rank 0 gives `work`; every rank gets its rows of the batch, or the signal.

    All ranks get equally many rows: the batch is filled up with rows that are masked out. Proximal
    log-probabilities are left behind, as every rank computes those of its own rows. ValueError on
    rank 0 without work.
    """
    if world.rank > 0:
        return _receive(world)
    if work is None:
        raise ValueError("rank 0 has to say what there is to do")
    if isinstance(work, Signal):
        world.broadcast(torch.tensor([int(work), 0]))
        return work
    filled = _fill(work, -work.rows % world.size)
    world.broadcast(torch.tensor([filled.rows, filled.tokens.shape[1]]))
    _broadcast(world, filled)
    return _own(world, filled)


def _receive(world: World) -> Batch | Signal:
    rows, length = world.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
    if rows < 0:
        return Signal(rows)
    batch = Batch(
        tokens=torch.empty(rows, length, dtype=torch.int64),
        mask=torch.empty(rows, length - 1, dtype=torch.bool),
        logprobs=torch.empty(rows, length - 1),
        versions=torch.empty(rows, length - 1, dtype=torch.int64),
        advantages=torch.empty(rows),
    )
    _broadcast(world, batch)
    return _own(world, batch)


def _broadcast(world: World, batch: Batch) -> None:
    # gloo moves no bool.
    for tensor in (batch.tokens, batch.mask.view(torch.uint8), batch.logprobs, batch.versions):
        world.broadcast(tensor)
    world.broadcast(batch.advantages)


def _own(world: World, batch: Batch) -> Batch:
    each = batch.rows // world.size
    return batch.slice(world.rank * each, (world.rank + 1) * each)


def _fill(batch: Batch, rows: int) -> Batch:
    below = (0, 0, 0, rows)
    return Batch(
        tokens=pad(batch.tokens, below),
        mask=pad(batch.mask, below),
        logprobs=pad(batch.logprobs, below),
        versions=pad(batch.versions, below, value=-1),
        advantages=pad(batch.advantages, (0, rows)),
    )
