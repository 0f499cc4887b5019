"""Tells a DTensor without loading what makes them, which takes a second of processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_WHOLE = frozenset({Tensor, nn.Parameter})


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether it is a DTensor, of which this rank may hold a part."""
    if type(tensor) in _WHOLE:
        return False
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - most processes have none

    return isinstance(tensor, DTensor)
