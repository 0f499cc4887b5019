"""Small values that ranks of one program send each other, as JSON in tensors of the CPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

MAX_VALUE_BYTES = 16 << 20
"""Of a value as JSON; what is larger travels as a tensor."""


def gather(value: Any, *, ranks: int, group: dist.ProcessGroup | None) -> list[Any]:
    """Collective. Each rank's value on all of the `ranks` of `group`, in their order.

    ValueError for what is no JSON, or too long, here or as another rank says; RuntimeError when a
    rank is lost.
    """
    data = encode(value)
    if ranks == 1:
        return [decode(data)]
    lengths = [torch.tensor(0) for _ in range(ranks)]
    dist.all_gather(lengths, torch.tensor(len(data)), group=group)
    checked = [checked_length(length) for length in lengths]
    padded = torch.nn.functional.pad(data, (0, max(checked) - len(data)))
    gathered = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(gathered, padded, group=group)
    return [decode(part[:length]) for part, length in zip(gathered, checked, strict=True)]


def encode(value: Any) -> Tensor:
    """ValueError for what is no JSON, or too long."""
    try:
        text = json.dumps(value).encode()
    except TypeError as error:
        raise ValueError(f"only values of JSON travel between ranks: {error}") from error
    if len(text) > MAX_VALUE_BYTES:
        raise ValueError(f"a value of {len(text)} bytes; at most {MAX_VALUE_BYTES} may travel")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def checked_length(length: Tensor) -> int:
    """ValueError for what another rank may not send; without this it could ask for any memory."""
    found = int(length)
    if not 0 < found <= MAX_VALUE_BYTES:
        raise ValueError(f"another rank sends {found} bytes; 1 to {MAX_VALUE_BYTES} may travel")
    return found


def decode(data: Tensor) -> Any:
    """The value that `encode` was given, as JSON has it."""
    return json.loads(data.numpy().tobytes())
