"""An endless, numbered sequence of the rows of one or several sources."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.data.row_order import nth_row, weighted_choice
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_protocol.data_config import DataConfig, DataSource

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_DROPPED = 1000  # rows one after the other, in a random order: hardly one is short enough


class RowReader(Protocol[T_co]):
    """A source whose rows were checked."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> T_co | None:
        """Row `number`; None if it is left out for its length. SpecError if it cannot be used."""

    def place(self, number: int) -> str:
        """Where row `number` is: file and line, or data set and row."""

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
        for number, source in enumerate(data.sources):
            alone = len(data.sources) == 1
            place = "spec.data.prompts" if alone else f"spec.data.sources[{number}].name"
            name = source.name
            if name.startswith("builtin:") and not name.startswith(REASONING_GYM):
                problem = f"unknown {source.name!r}"
                advice = (
                    "built in: builtin:reverse and builtin:first-letter, each as the only "
                    f"source of prompts, and {REASONING_GYM}<data set>"
                )
                raise SpecError(field or place, f"{problem}; {advice}")
            readers.append(open_reader(source, field or place))
            undo.callback(readers[-1].close)
        undo.pop_all()
    return RowMix(readers, [source.weight for source in data.sources], data.seed)
