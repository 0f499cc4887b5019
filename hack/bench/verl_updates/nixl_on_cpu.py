"""Lets verl's own checkpoint engine `nixl` run without a GPU, in this process.

With its setting `device: cpu` the engine still pins memory and synchronises with CUDA, and its
module imports cupy. `prepare` replaces these three; the engine sends weights by its own code.
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
