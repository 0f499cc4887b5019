"""What a training engine computes on: rows of tokens, and what a loss has to know of each.

A position reads `tokens[row, position]` and predicts `targets[row, position]`. The engine knows
tokens, targets and masks; whatever else a loss names (an advantage, the log-probability at sampling
time, a return, a label) travels in `extras` and is not looked at by any engine. The split into
model input and inputs of the loss is that of Tinker's and NeMo's `Datum`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainExample:
    """One sequence of n positions: `tokens`, `targets` and `mask` have n entries.

    `mask`: the prediction at this position counts. `extras`: numbers that the loss names, either
    one for each position or a single one for the sequence.
    """

    tokens: Sequence[int]
    targets: Sequence[int]
    mask: Sequence[bool]
    extras: Mapping[str, Sequence[float] | float] = field(default_factory=dict)

    @classmethod
    def of_sequence(cls, sequence: Sequence[int], *, predicted_from: int = 1) -> TrainExample:
        """Next-token prediction of `sequence[predicted_from:]`; ValueError below two tokens."""
        if len(sequence) < 2:
            raise ValueError("a sequence needs at least two tokens: one is read, one is predicted")
        return cls(
            tokens=sequence[:-1],
            targets=sequence[1:],
            mask=[position >= predicted_from for position in range(1, len(sequence))],
        )


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Rows padded on the right.

    `tokens` and `targets` are int64 [rows, length], `mask` is bool [rows, length] and false in the
    padding, `lengths` is int64 [rows]: positions that are no padding. An entry of `extras` is a
    float32 tensor of [rows, length], 0 where `mask` is false, or of [rows].
    """

    tokens: Tensor
    targets: Tensor
    mask: Tensor
    lengths: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, length = self.tokens.shape
        for name, tensor in (("targets", self.targets), ("mask", self.mask)):
            if tensor.shape != (rows, length):
                raise ValueError(f"{name} is {tuple(tensor.shape)}, not {(rows, length)}")
        if self.lengths.shape != (rows,):
            raise ValueError(f"lengths is {tuple(self.lengths.shape)}, not {(rows,)}")
        for name, tensor in self.extras.items():
            if tensor.shape not in {(rows, length), (rows,)}:
                shape = tuple(tensor.shape)
                raise ValueError(f"{name} is {shape}, neither {(rows, length)} nor {(rows,)}")

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return self.tokens.shape[0]

    def select(self, rows: Sequence[int] | Tensor) -> TrainBatch:
        """These rows, in this order, without the padding that none of them needs."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        lengths = self.lengths[index]
        longest = int(lengths.max()) if len(index) else 0

        def cut(tensor: Tensor) -> Tensor:
            return tensor[index] if tensor.ndim == 1 else tensor[index, :longest]

        return TrainBatch(
            tokens=cut(self.tokens),
            targets=cut(self.targets),
            mask=cut(self.mask),
            lengths=lengths,
            extras={name: cut(tensor) for name, tensor in self.extras.items()},
        )

    def split(self, parts: int) -> list[TrainBatch]:
        """Successive parts whose sizes differ by one row at most; at least one row in each."""
        parts = min(parts, self.rows)
        edges = [self.rows * part // parts for part in range(parts + 1)]
        return [self.select(range(start, edges[i + 1])) for i, start in enumerate(edges[:-1])]

    def with_extras(self, **extras: Tensor) -> TrainBatch:
        """The same rows with more for the loss to read."""
        return replace(self, extras={**self.extras, **extras})

    def to(self, device: torch.device | str) -> TrainBatch:
        """The same rows on `device`."""
        return TrainBatch(
            tokens=self.tokens.to(device),
            targets=self.targets.to(device),
            mask=self.mask.to(device),
            lengths=self.lengths.to(device),
            extras={name: tensor.to(device) for name, tensor in self.extras.items()},
        )


def collate(examples: Sequence[TrainExample]) -> TrainBatch:
    """One row an example. ValueError if there is none, or if entries do not stand beside tokens."""
    if not examples:
        raise ValueError("a batch needs at least one example")
    names = examples[0].extras.keys()
    for number, example in enumerate(examples):
        _check(example, names, number)
    length = max(len(example.tokens) for example in examples)
    return TrainBatch(
        tokens=_padded([example.tokens for example in examples], length, torch.int64),
        targets=_padded([example.targets for example in examples], length, torch.int64),
        mask=_padded([example.mask for example in examples], length, torch.bool),
        lengths=torch.tensor([len(example.tokens) for example in examples]),
        extras={name: _column([e.extras[name] for e in examples], length) for name in names},
    )


def _check(example: TrainExample, names: object, number: int) -> None:
    count = len(example.tokens)
    if not count == len(example.targets) == len(example.mask):
        raise ValueError(f"example {number} has another number of targets or masks than tokens")
    if example.extras.keys() != names:
        raise ValueError(f"example {number} has other extras than example 0")
    for name, value in example.extras.items():
        if not isinstance(value, (int, float)) and len(value) != count:
            raise ValueError(f"example {number} has {len(value)} of {name} for {count} tokens")


def _column(values: Sequence[Sequence[float] | float], length: int) -> Tensor:
    numbers = [value for value in values if isinstance(value, (int, float))]
    rows = [value for value in values if not isinstance(value, (int, float))]
    if numbers and rows:
        raise ValueError(
            "an extra is one number for a sequence, or one for each position; not both"
        )
    return (
        _padded(rows, length, torch.float32) if rows else torch.tensor(numbers, dtype=torch.float32)
    )


def _padded(
    rows: Sequence[Sequence[int] | Sequence[float]], length: int, dtype: torch.dtype
) -> Tensor:
    # One tensor of all values: one for each row would cost many times as much as the values do.
    lengths = torch.tensor([len(values) for values in rows])
    filled = torch.zeros(len(rows), length, dtype=dtype)
    there = torch.arange(length) < lengths[:, None]
    filled[there] = torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
    return filled
