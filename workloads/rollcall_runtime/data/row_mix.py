"""An endless, numbered sequence of the rows of one or several sources.

Its order depends on a key and a number alone: nothing is stored, and nothing is shuffled. A data
set of a hundred million rows begins as fast as one of ten, and a checkpoint needs no more of the
order than the number of the next row.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.data.open_rows import open_rows
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollcall_protocol.data_config import DataConfig, DataSource

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_DROPPED = 1000  # rows one after the other, in a random order: hardly one is short enough
_ROUNDS = 6


def shuffled(number: int, count: int, *, key: str) -> int:
    """Where `number` goes in the permutation of range(count) that `key` chooses.

    A Feistel network over the fewest pairs of bits that hold `count`, applied until the result is
    below it (cycle walking: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains").
    ValueError unless 0 <= number < count.
    """
    if not 0 <= number < count:
        raise ValueError(f"{number} is not in range({count})")
    bits = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << bits) - 1
    while True:  # it comes back to `number`, which is below count, at the latest
        left, right = number >> bits, number & mask
        for step in range(_ROUNDS):
            digest = blake2b(f"{key}/{step}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        number = left << bits | right
        if number < count:
            return number


def nth_row(number: int, count: int, *, key: str) -> int:
    """Row `number` of endless passes over range(count), each in another order."""
    turn, place = divmod(number, count)
    return shuffled(place, count, key=f"{key}/{turn}")


def weighted_choice(number: int, weights: Sequence[int], *, key: str) -> tuple[int, int]:
    """Which source the `number`-th item comes from, and the item's number within that source.

    Of `sum(weights)` successive items exactly `weights[i]` come from source i, in an order that
    `key` chooses; each source's items are used once each, none is left out.
    """
    total = sum(weights)
    turn, place = divmod(number, total)
    slot = shuffled(place, total, key=f"{key}/{turn}")
    ends = list(accumulate(weights))
    source = next(i for i, end in enumerate(ends) if slot < end)
    start = ends[source] - weights[source]
    return source, turn * weights[source] + slot - start


class RowReader(Protocol[T_co]):
    """A source whose rows were checked."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> T_co | None:
        """Row `number`; None if it is left out for its length. SpecError if it cannot be used."""

    def place(self, number: int) -> str:
        """Where row `number` is: file and line, or data set and row."""

    def content(self) -> str:
        """See `content_of`."""

    def close(self) -> None:
        """Free what is open; harmless twice."""


@dataclass(slots=True)
class RowMix(Generic[T]):
    """Rows of `readers` in the proportion of `weights`, in an order that `seed` chooses.

    Each reader's rows come over and over, in another order for each pass. Item i never changes. A
    row that is left out keeps its number.
    """

    readers: Sequence[RowReader[T]]
    weights: Sequence[int]
    seed: int
    _dropped: int = field(default=0, init=False)  # since the last item that was not

    def __len__(self) -> int:
        """The number of rows of all readers."""
        return sum(len(reader) for reader in self.readers)

    def place(self, number: int) -> str:
        """Where item `number` is: file and line, or data set and row."""
        reader, row = self._find(number)
        return reader.place(row)

    def item(self, number: int) -> T | None:
        """Item `number` (from 0); None if it is left out.

        SpecError if its row cannot be used, or if too many were left out one after the other.
        """
        reader, row = self._find(number)
        found = reader.read(row)
        self._dropped = self._dropped + 1 if found is None else 0
        if self._dropped > MAX_DROPPED:
            problem = f"{MAX_DROPPED} rows one after the other were left out for their length"
            raise SpecError(
                "spec.data.maxTokens", f"{problem}; raise it, or set tooLong to truncate"
            )
        return found

    def close(self) -> None:
        """Free what is open; harmless twice."""
        for reader in self.readers:
            reader.close()

    def _find(self, number: int) -> tuple[RowReader[T], int]:
        chosen, within = weighted_choice(number, self.weights, key=f"{self.seed}/mix")
        reader = self.readers[chosen]
        return reader, nth_row(within, len(reader), key=f"{self.seed}/{chosen}")


def open_mix(
    data: DataConfig, open_reader: Callable[[DataSource, str], RowReader[T]], *, field: str = ""
) -> RowMix[T]:
    """The rows of all sources of `data`; `open_reader` gets a source and its field of the spec.

    `field` is that of a source outside of spec.data. SpecError says what is wrong with a source.
    """
    with ExitStack() as undo:
        readers = []
        for source, place in _named_sources(data, field):
            readers.append(open_reader(source, place))
            undo.callback(readers[-1].close)
        undo.pop_all()
    return RowMix(readers, [source.weight for source in data.sources], data.seed)


def count_rows(data: DataConfig) -> int:
    """How many rows all sources of `data` have. None is checked; SpecError as `open_rows`."""
    total = 0
    for source, place in _named_sources(data):
        with closing(open_rows(source, field=place)) as rows:
            total += len(rows)
    return total


def _named_sources(data: DataConfig, field: str = "") -> Iterator[tuple[DataSource, str]]:
    """Each source with its field of the spec, or `field`; SpecError for one without rows."""
    alone = len(data.sources) == 1
    for number, source in enumerate(data.sources):
        place = field or ("spec.data.prompts" if alone else f"spec.data.sources[{number}].name")
        if source.name.startswith("builtin:") and not source.name.startswith(REASONING_GYM):
            problem = f"unknown {source.name!r}"
            advice = (
                "built in: builtin:reverse and builtin:first-letter, each as the only "
                f"source of prompts, and {REASONING_GYM}<data set>"
            )
            raise SpecError(place, f"{problem}; {advice}")
        yield source, place
