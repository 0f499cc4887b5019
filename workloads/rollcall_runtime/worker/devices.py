"""Which device a worker computes on. A CPU has to be asked for, or to be all there is."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from rollcall_protocol import pod_contract
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
    """The torch device type of this trainer rank, as `device_of` chooses it."""
    return device_of("trainer", asked=job.trainer_device, accelerators=job.trainer_accelerators)


def device_of(role: str, *, asked: str, accelerators: Mapping[str, int]) -> str:
    """The torch device type of a worker; `role` names its section of the spec.

    SpecError if that would be a CPU although its container asks for accelerators, or although its
    image's torch is built for them; unless a CPU is `asked` for.
    """
    if asked == CPU:
        return CPU
    found = worker_device()
    if found != CPU:
        return found
    if accelerators:
        raise _none_seen(f"spec.{role}.template", role, accelerators)
    built = "" if os.environ.get(pod_contract.LOCAL) else _built_for()
    if built:
        raise SpecError(
            f"spec.{role}.device",
            f"the image is built for {built}, and no such device is here; ask for one in the "
            f"resources of the {role}'s container, or set spec.{role}.device: cpu",
        )
    return CPU


def check_seen(accelerators: Mapping[str, int]) -> None:
    """SpecError if a rollout's container asks for accelerators and this process sees none."""
    if accelerators and worker_device() == CPU:
        raise _none_seen("spec.template", "rollout", accelerators)


def worker_device() -> str:
    """The torch device type of this worker's accelerator, "cpu" without one."""
    import torch  # noqa: PLC0415 - `own_device` is called by a process that does without it

    if not torch.accelerator.is_available():
        return CPU
    found = torch.accelerator.current_accelerator()
    return CPU if found is None else found.type


def _none_seen(field: str, role: str, accelerators: Mapping[str, int]) -> SpecError:
    wanted = " and ".join(f"{n} {name}" for name, n in accelerators.items())
    problem = f"the {role}'s container asks for {wanted}, and {_seen_by()} sees none"
    remedy = "check the node's driver and that the image is built for this kind of device"
    return SpecError(field, f"{problem}; {remedy}")


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
