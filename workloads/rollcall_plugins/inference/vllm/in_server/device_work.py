"""Work of a thread on its worker's device: which device, in which stream, and when it has ended.

A new thread has the first device, and shares the stream of all others. Never run on an accelerator;
tested against a double that fails where memory is read too early.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def beside_others(device: torch.device) -> Iterator[None]:
    """What this thread does is on `device`, beside what serves, and has ended when this returns."""
    if device.type == "cpu":
        yield
        return
    torch.accelerator.set_device_index(device)
    stream = torch.Stream(device)
    try:
        with stream:
            yield
    finally:
        stream.synchronize()


def finish(device: torch.device) -> None:
    """Wait for all work on the device; raises what has failed of it."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
