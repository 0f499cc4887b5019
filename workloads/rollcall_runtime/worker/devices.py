"""Which device a trainer rank computes on. A CPU has to be asked for, or to be all there is."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_protocol.job_config import JobConfig

CPU = "cpu"
# Of CUDA and ROCm, and of Ascend. They are read when the first device is used.
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")


def own_device(local_rank: int, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that show one of the container's devices to a process.

    So that it is device 0 for torch, and for every library, in each of the process' threads.
    """
    found = {}
    for name in VISIBLE_DEVICES:
        listed = [entry.strip() for entry in variables.get(name, "").split(",") if entry.strip()]
        inside = local_rank < len(listed)
        found[name] = listed[local_rank] if inside else "" if listed else str(local_rank)
    return found


def choose_device(job: JobConfig) -> str:
    """The torch device type of this trainer rank.

    SpecError if that would be a CPU although the trainer's container asks for accelerators, or
    although its torch is built for them; unless the job asks for a CPU.
    """
    if job.trainer_device == CPU:
        return CPU
    found = worker_device()
    if found != CPU:
        return found
    asked = " and ".join(f"{n} {name}" for name, n in job.trainer_accelerators.items())
    if asked:
        problem = f"the trainer's container asks for {asked}, and {_seen_by()} sees none"
        remedy = "check the node's driver and that the image is built for this kind of device"
        raise SpecError("spec.trainer.template", f"{problem}; {remedy}")
    built = _built_for()
    if built:
        raise SpecError(
            "spec.trainer.device",
            f"the image is built for {built}, and no such device is here; ask for one in the "
            "resources of the trainer's container, or set spec.trainer.device: cpu",
        )
    return CPU


def worker_device() -> str:
    """The torch device type of this worker's accelerator, "cpu" without one."""
    import torch  # noqa: PLC0415 - `own_device` is called by a process that does without it

    if not torch.accelerator.is_available():
        return CPU
    found = torch.accelerator.current_accelerator()
    return CPU if found is None else found.type


def _seen_by() -> str:
    shown = [f"{name}={os.environ[name]}" for name in VISIBLE_DEVICES if os.environ.get(name)]
    return f"this process ({', '.join(shown)})" if shown else "this process"


def _built_for() -> str:
    """What torch is built for besides CPUs, or an installed package makes it work on."""
    import torch  # noqa: PLC0415

    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return "Ascend" if importlib.util.find_spec("torch_npu") else ""
