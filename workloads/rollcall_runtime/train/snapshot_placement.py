"""The trainer's snapshots: what `weightSync.staging`, `dtype` and `verify` mean on this worker."""

import logging
from functools import partial

import torch

from rollcall_protocol.job_config import JobConfig, WeightSyncConfig
from rollcall_runtime.sync.engine import HOST
from rollcall_runtime.sync.memory.device_allocators import device_allocator
from rollcall_runtime.sync.open_engine import STREAMED, checksums_do, engine_classes
from rollcall_runtime.sync.weights.snapshots import Snapshotter
from rollcall_runtime.train.weight_recovery import ROLLOUTS

log = logging.getLogger(__name__)

ON_DEVICE = "Device"
SNAPSHOTS = 4  # served to newcomers, on the way, the next one, and one that a broken session holds
# The same on the device, but that training waits for broken sessions. The third is only made when a
# send takes longer than a step. Ranks that send parts learn late that the oldest is not needed.
DEVICE_SNAPSHOTS, DEVICE_PARTS = 3, 4


def sent_dtype(job: JobConfig, *, precision: str) -> torch.dtype:
    """What float32 weights are sent as, by a training engine of this `precision`.

    With bf16 it computes with the rounded weights, and so do rollouts. A trainer that takes weights
    back from rollouts needs all bits.
    """
    wanted = job.weight_sync.dtype
    exact = job.recover_from == ROLLOUTS
    rounded = wanted == "BFloat16" or (wanted == "Auto" and precision == "bf16" and not exact)
    return torch.bfloat16 if rounded else torch.float32


def has_cheap_checks(job: JobConfig, *, device: str) -> bool:
    """Whether checksums do in place of digests: weights go to members, and from memory alone.

    Digests are computed from a snapshot when a newcomer needs them, so it must still be there, as
    it is not when its only buffer is used again, nor when a trainer takes weights back from
    rollouts. SpecError for an unknown engine.
    """
    return job.recover_from != ROLLOUTS and checksums_do(job.weight_sync, device=device)


def make_snapshotter(
    sync: WeightSyncConfig,
    *,
    senders: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    cheap: bool = False,
) -> Snapshotter:
    """For a rank of a job in which `senders` ranks send, with its weights on `device` (a torch
    device type); those of float32 are sent as `dtype`, with `cheap` checks or digests. SpecError
    for an unknown engine.
    """
    make = partial(Snapshotter, bucket_bytes=sync.bucket_bytes, dtype=dtype, cheap=cheap)
    if sync.staging == STREAMED:
        return make(buffers=1, spare_bytes=0)
    memory = device_allocator(device) if sync.staging == ON_DEVICE else None
    if memory is None:
        if sync.staging == ON_DEVICE:
            log.info("this worker has no accelerator: snapshots are made in host memory")
        return make(buffers=SNAPSHOTS)
    keep = kept_in(sync, device=device)
    log.info(
        "snapshots are made on the %s and kept in memory of: %s",
        memory.device,
        ", ".join(sorted(keep)),
    )
    return make(
        buffers=SNAPSHOTS,
        memory=memory,
        keep=keep,
        device_buffers=DEVICE_SNAPSHOTS if senders == 1 else DEVICE_PARTS,
    )


def kept_in(sync: WeightSyncConfig, *, device: str) -> frozenset[str]:
    """The torch device types from whose memory the job's groups send.

    Every engine that can takes the device's. A delta is made of two versions in host memory.
    """
    direct = [device in engine.buffer_devices for engine in engine_classes(sync, device=device)]
    host = HOST if sync.delta or not all(direct) else frozenset()
    return host | frozenset({device} if any(direct) else ())
