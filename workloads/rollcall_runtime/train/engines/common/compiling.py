"""Compiles the layers of a model with torch.compile, where this container can."""

from collections.abc import Iterable

import torch
from torch import nn

from rollcall_runtime.models import sequence_attention
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError


def compile_layers(units: Iterable[nn.Module]) -> None:
    """Have each layer compiled at its first call. SpecError if nothing can be compiled here."""
    try:
        torch.compile(torch.neg)(torch.ones(1))
    except Exception as error:  # torch raises many types, for a missing compiler among others
        reason = str(error).partition("\n")[0]
        problem = f"this container cannot compile (is there a C++ compiler?): {reason}"
        raise SpecError(f"{FIELD}.config.compile", problem) from error
    sequence_attention.leave_uncompiled()
    for unit in units:
        unit.compile()
