"""The states of torch's random generators in this process, for a checkpoint."""

from collections.abc import Mapping

import torch
from torch import Tensor

CPU = "cpu"


def rng_states() -> dict[str, Tensor]:
    """By device type: the CPU's, and that of the accelerator in use, if there is one."""
    states = {CPU: torch.get_rng_state()}
    device = _accelerator()
    if device is not None:
        states[device] = torch.get_device_module(device).get_rng_state()
    return states


def set_rng_states(states: Mapping[str, Tensor]) -> None:
    """Continue from `states`, which are of devices that are in use here."""
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state)


def _accelerator() -> str | None:
    """The device type, if this process has begun to use it: asking must not start a driver."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.get_device_module(found.type).is_initialized():
        return None
    return found.type
