"""What FSDP2 on a CPU lacks in torch 2.6, the version that Debian ships. Empty from 2.7 on."""

from typing import Any

import torch

CANNOT_RESHARD = not hasattr(torch.cpu.Stream, "record_event")
"""Gathering a parameter again counts as changing it there, which the backward pass refuses."""


def complete_cpu_streams() -> None:
    """Give torch.cpu.Stream the two methods that FSDP2 calls; they do nothing in later versions."""
    if CANNOT_RESHARD:
        torch.cpu.Stream.record_event = _nothing  # type: ignore[method-assign,assignment]
        torch.cpu.Stream.wait_event = _nothing  # type: ignore[method-assign,assignment]


def _nothing(_stream: torch.cpu.Stream, *_arguments: Any) -> None:
    return None
