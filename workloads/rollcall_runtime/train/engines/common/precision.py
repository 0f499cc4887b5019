"""The number formats that engines compute in."""

import torch

from rollcall_protocol.train_settings import EngineSettings

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def compute_dtype(settings: EngineSettings) -> torch.dtype:
    """Of the forward and backward pass; weights and optimizer stay in float32."""
    return _DTYPES[settings.precision]
