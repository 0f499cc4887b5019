"""Broadcasts a batch from rank 0, which gets it from the rollouts, to all ranks of a trainer."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.train.train_batch import TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.process_group import TrainerProcessGroup


class LeaderSignal(IntEnum):
    """What rank 0 broadcasts instead of a batch."""

    IDLE = -1  # nothing to do yet, ask again; sent before the group's timeout runs out
    STOP = -2  # training is over
    BEGIN = -3  # take rank 0's weights if it has other ones, and copy them for the first version


def broadcast_work(
    ranks: TrainerProcessGroup, work: TrainBatch | LeaderSignal | None
) -> TrainBatch | LeaderSignal:
    """Collective. Rank 0 gives `work`; every rank gets the whole batch, or the signal.

    A header of JSON goes first, then the tensors. ValueError on rank 0 without work.
    """
    if ranks.rank == 0 and work is None:
        raise ValueError("rank 0 must give a batch or a signal")
    header = ranks.broadcast_value(None if work is None else _header(work))
    if "signal" in header:
        return LeaderSignal(header["signal"])
    batch = work if isinstance(work, TrainBatch) else _empty(header)
    for tensor in (batch.tokens, batch.targets, batch.lengths, *batch.extras.values()):
        ranks.broadcast(tensor)
    ranks.broadcast(batch.mask.view(torch.uint8))  # gloo moves no bool
    return batch


def _header(work: TrainBatch | LeaderSignal) -> dict[str, Any]:
    if isinstance(work, LeaderSignal):
        return {"signal": int(work)}
    extras = {name: list(tensor.shape) for name, tensor in work.extras.items()}
    return {"shape": list(work.tokens.shape), "extras": extras}


def _empty(header: dict[str, Any]) -> TrainBatch:
    """A batch to be filled, of the shapes that the header says."""
    rows, length = header["shape"]

    def numbers() -> Tensor:
        return torch.empty(rows, length, dtype=torch.int64)

    return TrainBatch(
        tokens=numbers(),
        targets=numbers(),
        mask=torch.empty(rows, length, dtype=torch.bool),
        lengths=torch.empty(rows, dtype=torch.int64),
        extras={name: torch.empty(shape) for name, shape in header["extras"].items()},
    )
