"""Adds up what a loss gives for micro-batches, and then over ranks in one collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rollcall_runtime.train.train_loss import LossSums


class LossTotals:
    """Sums in float64 on the device; nothing is read from it before the end."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None  # the loss, then sum and count of each metric
        self._maxima: Tensor | None = None
        self._names: tuple[list[str], list[str]] = ([], [])

    def add(self, sums: LossSums) -> None:
        """Add a micro-batch; ValueError if its names are not those of the one before."""
        names = (list(sums.metrics), list(sums.maxima))
        values = [sums.loss.detach()]
        for total, count in sums.metrics.values():
            values += [total, torch.as_tensor(count, device=total.device)]
        added = torch.stack([value.detach().double() for value in values])
        highest = torch.stack([added.new_zeros(()), *(v.double() for v in sums.maxima.values())])
        if self._sums is None or self._maxima is None:
            self._names, self._sums, self._maxima = names, added, highest
        elif self._names != names:
            raise ValueError(f"a loss gave the figures {names}, and {self._names} before")
        else:
            self._sums = self._sums + added
            self._maxima = torch.maximum(self._maxima, highest)

    def means(self, gather: Callable[[Tensor], Tensor]) -> tuple[float, dict[str, float]]:
        """The loss's sum and the metrics over all ranks; `gather` gives each rank's values.

        A mean of nothing is 0. NaN in any part makes its total NaN.
        """
        if self._sums is None or self._maxima is None:
            raise ValueError("there was no micro-batch")
        count = len(self._sums)
        gathered = gather(torch.cat([self._sums, self._maxima]).cpu())
        total, *sums = gathered[:, :count].sum(0).tolist()
        highest = gathered[:, count + 1 :].amax(0).tolist()
        metrics = {
            name: sums[2 * at] / sums[2 * at + 1] if sums[2 * at + 1] else 0.0
            for at, name in enumerate(self._names[0])
        }
        return total, metrics | dict(zip(self._names[1], highest, strict=True))
