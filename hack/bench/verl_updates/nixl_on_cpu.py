"""Lets verl's own checkpoint engine `nixl` run without a GPU, in this process.

Its setting `device: cpu` pins memory and synchronises with CUDA even so, and its module imports
cupy. What it sends, and how, stays as it is.
"""

import sys
import types
from typing import Any

import torch


def prepare() -> None:
    """Call before verl imports its engine."""
    cupy = types.ModuleType("cupy")
    cupy.ndarray = torch.Tensor  # type: ignore[attr-defined]  # of an annotation
    sys.modules.setdefault("cupy", cupy)
    torch.cuda.synchronize = lambda *_: None
    zeros = torch.zeros

    def not_pinned(*size: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        del pin_memory
        return zeros(*size, **more)

    torch.zeros = not_pinned  # type: ignore[assignment]
