"""When work on a device has ended."""

import torch


def wait(device: str) -> None:
    """For all work on the device; nothing on a CPU, whose work has ended."""
    if device != "cpu":
        torch.accelerator.synchronize()
