"""Whether a tensor holds NaN or infinite numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from rollcall_runtime.models.sharded_tensors import is_sharded


def finite(tensor: Tensor) -> Tensor:
    """Whether all values are finite, as a tensor of one bool on the same device."""
    local = tensor.to_local() if is_sharded(tensor) else tensor
    if local.numel() == 0:
        return torch.ones((), dtype=torch.bool)
    # In one pass and without a temporary, unlike isfinite: NaN anywhere makes both NaN. torch has
    # neither for floats of one byte.
    ends = torch.aminmax(local.float() if local.element_size() == 1 else local)
    return torch.stack(ends).isfinite().all()
