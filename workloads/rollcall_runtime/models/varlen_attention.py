"""torch's kernel for sequences of several lengths that stand one after the other in one row.

https://docs.pytorch.org/docs/stable/nn.attention.varlen.html. It is for GPUs and numbers of two
bytes, and computes all sequences at once. Never run on a GPU; tested against a double of what its
documentation says.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_HALF = frozenset({torch.bfloat16, torch.float16})
_WIDEST = 256  # of a head


def _find_kernel() -> Callable[..., Any] | None:
    """None in a torch that has no such kernel, or one of other arguments."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - since torch 2.10
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa", "scale"} <= known.keys() else None


_kernel = _find_kernel()


def lack(*, device: str, two_byte_numbers: bool) -> str:
    """Why a trainer on `device` (a torch device type) does without the kernel; empty if it may not.

    The heads of its model may still be too wide, or not wide enough.
    """
    if torch.are_deterministic_algorithms_enabled():
        return "its gradients are not the same bits each time, as algorithm.deterministic has them"
    if device != "cuda":
        return "torch's kernel for several sequences needs a GPU"
    if not two_byte_numbers:
        return "torch's kernel for several sequences needs precision: bf16"
    if _kernel is None:
        return f"torch {torch.__version__} has no kernel for several sequences that fits"
    return ""


def is_usable(query: Tensor, *, dropout: float) -> bool:
    """Whether the kernel computes this; its gradients are not the same bits each time."""
    rows, _, _, width = query.shape
    fits = rows == 1 and not dropout and width % 8 == 0 and width <= _WIDEST
    here = query.is_cuda and query.dtype in _HALF and _kernel is not None
    return fits and here and not torch.are_deterministic_algorithms_enabled()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: tuple[int, ...],
    *,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """[1, heads, positions, width] to [1, positions, heads, width], as `attend_by_sequence` does.

    A position sees `window`, itself included, or all before it.
    """
    assert _kernel is not None  # noqa: S101 - `is_usable` said so
    ends, longest = _ends(lengths, query.device), max(lengths)
    mixed: Tensor = _kernel(
        *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
        ends,
        ends,
        longest,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return mixed[None]


@lru_cache(maxsize=4)  # each layer asks for the same
def _ends(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
