"""What the suite trains on: rows of random tokens whose lengths vary by a factor of eight."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate

VOCABULARY = 64
"""Token ids are below this; every model of the suite knows as many."""

_SHORTEST, _LONGEST = 3, 24


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch by its seed: tester and ranks make the same one. All ranks have `count` together."""

    seed: int
    count: int = 9
    longest: int = _LONGEST

    def whole(self) -> TrainBatch:
        """All rows.

        Extras: "weight" [rows, length] within 0.5 to 1.5, "advantage" [rows] within -1 to 1,
        "label" [rows] 0 or 1, "return" [rows, length] within -1 to 1.
        """
        numbers = random.Random(self.seed)
        return collate([_example(numbers, self.longest) for _ in range(self.count)])

    def share(self, rank: int, size: int) -> TrainBatch:
        """The rows of one of `size` data-parallel ranks; none where there are too few."""
        first, end = (self.count * part // size for part in (rank, rank + 1))
        return self.whole().select(range(first, end))


def _example(numbers: random.Random, longest: int) -> TrainExample:
    length = numbers.randint(_SHORTEST, longest)
    sequence = [numbers.randrange(VOCABULARY) for _ in range(length + 1)]
    plain = TrainExample.of_sequence(sequence, predicted_from=numbers.randint(1, length))
    return TrainExample(
        tokens=plain.tokens,
        targets=plain.targets,
        mask=plain.mask,
        extras={
            "weight": [numbers.uniform(0.5, 1.5) for _ in range(length)],
            "advantage": numbers.uniform(-1, 1),
            "label": float(numbers.randrange(2)),
            "return": [numbers.uniform(-1, 1) for _ in range(length)],
        },
    )
