"""Packed rows on the device: what they are attended to, and their speed against padded rows.

Lengths are 1 to 8, so that padding takes almost half of the padded rows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from hack.first_contact.step import Figures, run
from rollcall_plugins.inference.vllm.in_server import device_work
from rollcall_protocol.train_settings import Attention
from rollcall_runtime.models import varlen_attention
from rollcall_runtime.models.sequence_attention import RowLayout, attend_by_sequence

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, KEY_HEADS, WIDTH = 16, 4, 64
UNITS = {"cpu": 16}  # positions; elsewhere:
UNIT_ON_DEVICES = 512
CLOSE = 0.03  # bf16 has eight bits


def attention(device: str) -> Figures:
    """AssertionError if outputs or gradients differ from float32 on the CPU."""
    unit = UNITS.get(device, UNIT_ON_DEVICES)
    lengths = tuple(unit * number for number in range(1, 9))
    worst = max(_difference(device, lengths, window) for window in (None, unit + 3))
    assert worst < CLOSE, f"a number differs by {worst}"
    packed = _given(device, sum(lengths))
    padded = _given(device, lengths[-1], rows=len(lengths))
    packed_s = _seconds(device, lambda: attend_by_sequence(*packed, RowLayout(lengths)))
    padded_s = _seconds(device, lambda: _padded(*padded))
    return {
        "kernel": varlen_attention.is_usable(packed[0], Attention.AUTO, dropout=0.0),
        "largest_difference": round(worst, 4),
        "positions": sum(lengths),
        "packed_ms": round(1000 * packed_s, 2),
        "padded_ms": round(1000 * padded_s, 2),
        "packed_against_padded": round(padded_s / packed_s, 2),
    }


def _given(device: str, positions: int, *, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(rows, heads, positions, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    made = (torch.randn(shape, generator=generator).bfloat16().to(device) for shape in shapes)
    query, key, value = (tensor.requires_grad_() for tensor in made)
    return query, key, value


def _difference(device: str, lengths: tuple[int, ...], window: int | None) -> float:
    here, layout = _given(device, sum(lengths)), RowLayout(lengths)
    query, key, value = (tensor.detach().cpu().float().requires_grad_() for tensor in here)
    there = query, key, value
    outputs = [attend_by_sequence(*each, layout, window=window) for each in (here, there)]
    for output in outputs:
        output.float().square().mean().backward()  # type: ignore[no-untyped-call]
    found = [outputs[0], *(tensor.grad for tensor in here)]
    expected = [outputs[1], *(tensor.grad for tensor in there)]
    return max(_relative(*pair) for pair in zip(found, expected, strict=True))


def _relative(found: Any, expected: Any) -> float:
    scale = expected.abs().max()
    return float(((found.detach().cpu().float() - expected).abs().max() / scale).item())


def _padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def _seconds(device: str, attend: Callable[[], Tensor]) -> float:
    """Of a pass forwards and backwards, after one that warms up."""
    passes = []
    for _ in range(4):
        began = time.monotonic()
        loss: Any = attend().float().square().mean()
        loss.backward()
        device_work.finish(torch.device(device))
        passes.append(time.monotonic() - began)
    return min(passes[1:])


if __name__ == "__main__":
    run(attention)
