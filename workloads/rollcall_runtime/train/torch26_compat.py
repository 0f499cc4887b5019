"""What FSDP2 and checkpoints lack in torch 2.6, which Debian ships. Empty from 2.7 on."""

import copyreg
import traceback
from typing import Any

import torch

CANNOT_RESHARD = not hasattr(torch.cpu.Stream, "record_event")
"""Gathering a parameter again counts as changing it there, which the backward pass refuses."""


def complete_cpu_streams() -> None:
    """Give torch.cpu.Stream the two methods that FSDP2 calls; they do nothing in later versions."""
    if CANNOT_RESHARD:
        torch.cpu.Stream.record_event = _nothing  # type: ignore[method-assign,assignment]
        torch.cpu.Stream.wait_event = _nothing  # type: ignore[method-assign,assignment]


def let_errors_travel() -> None:
    """Let a rank send the error of a failed save to the others.

    Until 2.6 torch sends the error with its traceback, whose lines hold code from Python 3.13 on,
    and code cannot be pickled.
    """
    if CANNOT_RESHARD:
        copyreg.pickle(traceback.FrameSummary, _without_code)


def _without_code(line: traceback.FrameSummary) -> tuple[Any, ...]:
    return traceback.FrameSummary, (line.filename, line.lineno, line.name)


def _nothing(_stream: torch.cpu.Stream, *_arguments: Any) -> None:
    return None
