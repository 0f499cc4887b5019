"""The states of torch's random generators in this process, for a checkpoint."""

from collections.abc import Collection

import torch
from torch import Tensor

CPU = "cpu"


def generator_states() -> dict[str, Tensor]:
    """By device type: the CPU's, and that of the accelerator in use, if there is one."""
    states = {CPU: torch.get_rng_state()}
    device = _accelerator()
    if device is not None:
        states[device] = torch.get_device_module(device).get_rng_state()
    return states


def set_generator_states(states: dict[str, Tensor], *, only: Collection[str]) -> None:
    """Continue from `states`; those of devices not in `only`, or not here, are left alone."""
    device = _accelerator()
    for name in only:
        if name == CPU:
            torch.set_rng_state(states[name])
        elif name == device:
            torch.get_device_module(device).set_rng_state(states[name])


def _accelerator() -> str | None:
    """The device type, if this process has begun to use it: asking must not start a driver."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.get_device_module(found.type).is_initialized():
        return None
    return found.type
