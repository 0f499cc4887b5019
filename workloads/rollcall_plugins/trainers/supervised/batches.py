"""Batches for supervised training, read ahead in a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from rollcall_runtime.data.row_mix import RowMix
    from rollcall_runtime.data.supervised_rows import LabelledSequence


@dataclass(slots=True)
class RowCounts:
    """Rows that were read, and what the limit of tokens did to them."""

    read: int = 0
    left_out: int = 0
    truncated: int = 0


@dataclass(slots=True)
class SupervisedBatches:
    """Batches of `size` successive rows by number. The last one of each pass has what is left, so
    that a pass has each row of a source once; others have fewer where rows were left out.
    """

    rows: RowMix[LabelledSequence]
    size: int
    counts: RowCounts = field(default_factory=RowCounts)

    def batch(self, number: int) -> TrainBatch:
        """Batch `number` (from 0), the same whenever it is read. SpecError for an unusable row."""
        count = len(self.rows)
        turn, place = divmod(number, -(-count // self.size))
        first = turn * count + place * self.size
        return self._batch(range(first, min(first + self.size, (turn + 1) * count)))

    def ahead(self, numbers: Sequence[int]) -> Iterator[TrainBatch]:
        """These batches; the next one is made while the caller works on one."""
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as thread:
            coming: Future[TrainBatch] | None = None
            for place in range(len(numbers)):
                batch = (coming or thread.submit(self.batch, numbers[place])).result()
                last = place + 1 == len(numbers)
                coming = None if last else thread.submit(self.batch, numbers[place + 1])
                yield batch

    def once(self) -> Iterator[TrainBatch]:
        """As many rows as there are, for an evaluation."""
        count = len(self.rows)
        for first in range(0, count, self.size):
            yield self._batch(range(first, min(first + self.size, count)))

    def _batch(self, numbers: range) -> TrainBatch:
        items = [self.rows.item(number) for number in numbers]
        rows = [item for item in items if item is not None]
        self.counts.read += len(items)
        self.counts.left_out += len(items) - len(rows)
        self.counts.truncated += sum(row.truncated for row in rows)
        return collate([_example(row) for row in rows]) if rows else _no_rows()


def _example(row: LabelledSequence) -> TrainExample:
    return TrainExample(tokens=row.tokens[:-1], targets=row.tokens[1:], mask=row.learnt[1:])


def _no_rows() -> TrainBatch:
    none = torch.zeros(0, 1, dtype=torch.int64)
    return TrainBatch(
        tokens=none, targets=none, mask=none.bool(), lengths=torch.zeros(0, dtype=torch.int64)
    )
