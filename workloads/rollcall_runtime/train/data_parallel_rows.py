"""Which rows of a batch each data-parallel rank computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


def rows_of(engine: TrainEngine, batch: TrainBatch) -> TrainBatch:
    """The rows that `engine` computes of a batch that all ranks have."""
    shares = share_rows(batch.lengths.tolist(), ranks=engine.data_parallel_size)
    return batch.select(shares[engine.data_parallel_rank])


def share_rows(lengths: Sequence[int], *, ranks: int) -> list[list[int]]:
    """Row numbers of each rank, ascending; numbers of rows differ by one at most.

    The longest rows are given out first, each to the rank with the fewest rows and then the fewest
    positions, so that ranks have about equally much to compute.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    positions = [0] * ranks
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        rank = min(range(ranks), key=lambda rank: (len(shares[rank]), positions[rank], rank))
        shares[rank].append(row)
        positions[rank] += lengths[row]
    return [sorted(share) for share in shares]
