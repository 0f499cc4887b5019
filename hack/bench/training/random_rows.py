"""Batches of random tokens: every side makes the same ones from their numbers."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate


@dataclass(frozen=True, slots=True)
class RandomRows:
    """Batches of `rows` sequences; every token but the first is predicted.

    Lengths in positions are `shortest` to `longest`, with logarithms that are uniformly
    distributed. Token ids are below `vocabulary`.
    """

    rows: int
    shortest: int
    longest: int
    vocabulary: int

    def batch(self, number: int) -> TrainBatch:
        """Batch `number`, the same in every process."""
        numbers = random.Random(number)
        return collate([self._example(numbers) for _ in range(self.rows)])

    def _example(self, numbers: random.Random) -> TrainExample:
        exponent = numbers.uniform(math.log(self.shortest), math.log(self.longest))
        length = round(math.exp(exponent))
        return TrainExample.of_sequence(
            [numbers.randrange(self.vocabulary) for _ in range(length + 1)]
        )
