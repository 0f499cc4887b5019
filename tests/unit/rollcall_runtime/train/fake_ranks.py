"""The process group of a trainer, played by one process."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rollcall_runtime.train.process_group import TrainerProcessGroup


class FakeRanks:
    """Rank `rank`. What rank 0 broadcasts to another one is `said`, in its order.

    `others` is what the other ranks gather. Tensors that another rank receives are all zeros.
    """

    def __init__(self, *, rank: int = 0, said: Sequence[Any] = ()) -> None:
        self.rank, self.device = rank, torch.device("cpu")
        self.said = list(said)
        self.others: list[Any] = []
        self.broadcasts: list[Any] = []  # what rank 0 said
        self.closed = False

    @property
    def size(self) -> int:
        return 1 + len(self.others)

    def any(self, value: bool) -> bool:
        return any(self.gather(value))

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]

    def gather_for_checkpoint(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_value(self, value: Any = None) -> Any:
        self.broadcasts.append(value)
        return value if self.rank == 0 else self.said.pop(0)

    def broadcast(self, values: Tensor) -> Tensor:
        return values if self.rank == 0 else values.zero_()

    def close(self) -> None:
        self.closed = True


def as_ranks(fake: FakeRanks) -> TrainerProcessGroup:
    """For what asks for the real one."""
    return cast("TrainerProcessGroup", fake)
