"""GPU memory of torch that another process on the same card maps: CUDA IPC, as torch does it.

What torch sends between processes is pickled, classes included. A key here is JSON with the numbers
alone. Source: torch.multiprocessing.reductions of 2.13. Never run on a GPU; tested against a double
of its two functions.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.multiprocessing import reductions

reduce_tensor: Any = reductions.reduce_tensor
rebuild_cuda_tensor: Any = reductions.rebuild_cuda_tensor
_NUMBERS = ("nbytes", "offset", "storage", "at", "counter_at")
_HANDLES = ("memory", "counter", "event")


class GpuHandleError(ValueError):
    """A key that is malformed, or of memory on another card."""


def export(flat: torch.Tensor) -> str:
    """A key of `flat`, uint8 [nbytes]. It is for one process, which maps it once: torch counts."""
    _, found = reduce_tensor(flat)
    (_, _, _, offset, _, _, device, memory, storage, at, _, counter, counter_at, event, wait) = (
        found
    )
    return json.dumps(
        {
            "card": _card(torch.device("cuda", device)),
            "nbytes": flat.nbytes,
            "offset": offset,
            "memory": memory.hex(),
            "storage": storage,
            "at": at,
            "counter": counter.hex(),
            "counter_at": counter_at,
            "event": event.hex(),
            "wait": wait,
        }
    )


def mapped(key: str, device: torch.device) -> torch.Tensor:
    """The memory as uint8 [nbytes], of a process that runs on `device`; GpuHandleError."""
    try:
        given: Any = json.loads(key)
        card, wait = str(given["card"]), bool(given["wait"])
        handles = {name: bytes.fromhex(given[name]) for name in _HANDLES}
        numbers = {name: _number(given[name]) for name in _NUMBERS}
    except (ValueError, KeyError, TypeError) as error:
        raise GpuHandleError(f"a key of GPU memory is malformed: {error!r}") from error
    if card != _card(device):
        raise GpuHandleError(f"the weights are on the card {card}, and not on {device}")
    length, offset, size, at, counter_at = numbers.values()
    if offset + length > size:
        raise GpuHandleError(f"{length} bytes from {offset} on are not in memory of {size} bytes")
    found: torch.Tensor = rebuild_cuda_tensor(
        torch.Tensor,
        *((length,), (1,), offset),
        *(torch.storage.TypedStorage, torch.uint8, device.index or 0),
        *(handles["memory"], size, at),
        False,  # no gradient
        *(handles["counter"], counter_at, handles["event"], wait),
    )
    return found


def _card(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value
