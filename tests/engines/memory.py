"""How much memory a rank takes, for tests that compare two ways of training."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import saved_tensors_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@contextmanager
def kept_for_backward() -> Iterator[dict[int, int]]:
    """The bytes of each piece of memory that the body's forward pass keeps for its backward pass.

    Exact, where the memory of the process varies with what else it does.
    """
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        yield kept


def allocated(device: torch.device) -> int:
    """Bytes of an accelerator's memory that tensors take; 0 on a CPU, where torch counts none."""
    if device.type == "cpu":
        return 0
    gc.collect()
    return int(torch.get_device_module(device).memory_allocated(device))
