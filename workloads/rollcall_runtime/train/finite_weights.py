"""Finds weights that are NaN or infinite on their way to a copy, without waiting for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.models.finite import finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


class NotFiniteError(ValueError):
    """Weights are NaN or infinite; the message names a tensor."""


class FiniteWeights:
    """Tensors that were looked at. Of sharded ones each rank looks at its own part."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._finite: list[Tensor] = []  # one value each, on the tensor's device

    def add(self, name: str, tensor: Tensor) -> None:
        """Look at one tensor; of integers there is nothing to see."""
        if tensor.is_floating_point():
            self._names.append(name)
            self._finite.append(finite(tensor))

    def watch(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same tensors, each looked at as it passes."""
        for name, tensor in tensors:
            self.add(name, tensor)
            yield name, tensor

    def first_bad(self) -> str:
        """The name of a tensor that is not finite, "" if all are. Waits for the device."""
        bad = (name for name, good in zip(self._names, self._finite, strict=True) if not good)
        return next(bad, "")
