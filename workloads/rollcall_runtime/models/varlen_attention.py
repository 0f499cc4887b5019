"""Kernels for sequences of several lengths that stand one after the other in one row.

`varlen` is torch's own (https://docs.pytorch.org/docs/stable/nn.attention.varlen.html), and
`flash_attention_2` that of the package flash-attn (https://github.com/Dao-AILab/flash-attention,
`flash_attn_varlen_func`). They are for GPUs and numbers of two bytes, and compute all sequences at
once. Never run on a GPU; tested against doubles of what their documentation says.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from rollcall_protocol.train_settings import Attention

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_HALF = frozenset({torch.bfloat16, torch.float16})
_WIDEST = 256  # of a head


@lru_cache(maxsize=1)  # it loads torch's compiler, for a second
def _torchs_kernel() -> Callable[..., Any] | None:
    """None in a torch that has no such kernel, or one of other arguments."""
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - since torch 2.10
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa", "scale"} <= known.keys() else None


@lru_cache(maxsize=1)
def _flash_kernel() -> Callable[..., Any] | None:
    """None without the package, which no image has."""
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: PLC0415
    except ImportError:
        return None
    found: Callable[..., Any] = flash_attn_varlen_func
    return found


def lack(attention: str, *, device: str, two_byte_numbers: bool) -> str:
    """Why a trainer on `device` (a torch device type) does without a kernel; empty if it may not.

    The heads of its model may still be too wide, or not wide enough.
    """
    if attention == Attention.SDPA:
        return f"attention is {Attention.SDPA}"
    if attention != Attention.FLASH and torch.are_deterministic_algorithms_enabled():
        return "its gradients are not the same bits each time, as algorithm.deterministic has them"
    if device != "cuda":
        return "a kernel for several sequences needs a GPU"
    if not two_byte_numbers:
        return "a kernel for several sequences needs precision: bf16"
    if _chosen(attention) is None:
        if attention == Attention.FLASH:
            return "the package flash-attn is not in this image"
        return f"torch {torch.__version__} has no kernel for several sequences that fits"
    return ""


def is_usable(query: Tensor, attention: str, *, dropout: float) -> bool:
    """Whether the kernel computes this. Gradients of torch's are not the same bits each time."""
    rows, _, _, width = query.shape
    fits = rows == 1 and not dropout and width % 8 == 0 and width <= _WIDEST
    if not (fits and query.is_cuda and query.dtype in _HALF) or attention == Attention.SDPA:
        return False
    same = attention == Attention.FLASH or not torch.are_deterministic_algorithms_enabled()
    return same and _chosen(attention) is not None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: tuple[int, ...],
    attention: str,
    *,
    scale: float | None,
    window: int | None,
) -> Tensor:
    """[1, heads, positions, width] to [1, positions, heads, width], as `attend_by_sequence` does.

    A position sees `window`, itself included, or all before it.
    """
    kernel = _chosen(attention)
    assert kernel is not None  # noqa: S101 - `is_usable` said so
    ends, longest = _ends(lengths, query.device), max(lengths)
    given = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    left = -1 if window is None else window - 1
    if attention == Attention.FLASH:
        mixed = kernel(
            *(*given, ends, ends, longest, longest),
            softmax_scale=scale,
            causal=True,
            window_size=(left, 0),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
    else:
        mixed = kernel(
            *(*given, ends, ends, longest, longest),
            scale=scale,
            window_size=(left, 0),
            enable_gqa=key.shape[1] != query.shape[1],
        )
    whole: Tensor = mixed[None]
    return whole


def _chosen(attention: str) -> Callable[..., Any] | None:
    return _flash_kernel() if attention == Attention.FLASH else _torchs_kernel()


@lru_cache(maxsize=4)  # each layer asks for the same
def _ends(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
