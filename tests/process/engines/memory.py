"""How much memory a rank takes, for tests that compare two ways of training."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import LossFunction, LossSums, ModelOutput


@contextmanager
def kept_for_backward() -> Iterator[dict[int, int]]:
    """The bytes of each piece of memory that the body's forward pass keeps for its backward pass.

    Exact, where the memory of the process varies with what else it does.
    """
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        for plain in _plain_tensors(tensor):
            storage = plain.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        yield kept


@dataclass(slots=True)
class LossThatLooks:
    """`inner`, and how much was kept when it was computed, between the two passes.

    What is computed again in the backward pass would count otherwise.
    """

    inner: LossFunction
    kept: dict[int, int]
    bytes_kept: int = 0

    @property
    def needs_entropy(self) -> bool:
        return self.inner.needs_entropy

    def denominator(self, batch: TrainBatch) -> Tensor:
        return self.inner.denominator(batch)

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        self.bytes_kept = sum(self.kept.values())
        return self.inner(output, batch)


def _plain_tensors(tensor: Any) -> Iterator[Tensor]:
    """What holds the numbers: of a sharded tensor, or of one that is on its way, the inner one."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for inner in (getattr(tensor, name) for name in names):
        if isinstance(inner, torch.Tensor):  # and not a mesh
            yield from _plain_tensors(inner)


def allocated(device: torch.device) -> int:
    """Bytes of an accelerator's memory that tensors take; 0 on a CPU, where torch counts none."""
    if device.type == "cpu":
        return 0
    gc.collect()
    return int(torch.get_device_module(device).memory_allocated(device))
