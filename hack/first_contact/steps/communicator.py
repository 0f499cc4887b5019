"""NCCL on one card: a communicator of one rank, its abort, and what it says of two ranks there.

On CPUs the project's double of NCCL and of CUDA's runtime takes their place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode

from hack.first_contact.step import Figures, SkipStepError, run
from rollcall_plugins.transports.nccl.device_slots import CudaDeviceSlots
from rollcall_plugins.transports.nccl.nccl_library import Handle, NcclLibrary
from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from tests.doubles import build as doubles

SLOT = 64 << 20
SECONDS = 20.0
_RANK = "FIRST_CONTACT_RANK"  # of two: its number and the unique id


def communicator(device: str) -> Figures:
    """AssertionError or LibraryError if one rank cannot broadcast, or its abort hangs."""
    if device == "npu":
        raise SkipStepError("HCCL's communicators are tried with two cards: make test-gpu")
    library = ""
    if device == "cpu":
        doubles.build()
        library = doubles.NCCL
    nccl, cuda = NcclLibrary(library), CudaLibrary(library)
    slots = CudaDeviceSlots(cuda, index=0, slots=2, slot_bytes=SLOT)
    slots.use_device()
    if os.environ.get(_RANK):
        return _one_of_two(nccl, os.environ[_RANK])
    return {"one_rank": _alone(nccl, slots), "two_ranks_on_one_card": _two(nccl, device)}


def _alone(nccl: NcclLibrary, slots: CudaDeviceSlots) -> Figures:
    began = time.monotonic()
    handle = nccl.init(nccl.unique_id(), size=1, rank=0)
    _wait(nccl, handle)
    made = time.monotonic() - began
    ring = slots.take_ring()
    slot = ring.next_slot()
    nccl.broadcast(handle, slot.pointer, SLOT, slot.stream)
    _wait(nccl, handle)
    deadline = time.monotonic() + SECONDS
    while not ring.idle(slot):
        assert time.monotonic() < deadline, "a broadcast of one rank does not end"
        time.sleep(0.001)
    began = time.monotonic()
    nccl.abort(handle)
    aborted = time.monotonic() - began
    return {"made_s": round(made, 3), "abort_s": round(aborted, 3), "shrinks": nccl.can_shrink}


def _two(nccl: NcclLibrary, device: str) -> list[str]:
    """What each of two ranks on the same card says: NCCL refuses that, and must not hang."""
    unique = b64encode(nccl.unique_id()).decode()
    command = [sys.executable, "-m", "hack.first_contact.steps.communicator", device]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | {_RANK: f"{rank} {unique}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    said = []
    for rank in ranks:
        try:
            out, _ = rank.communicate(timeout=SECONDS)
            said.append(out.decode().strip()[-300:])
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.communicate()
            said.append(f"no word within {SECONDS:.0f} s")
    return said


def _one_of_two(nccl: NcclLibrary, given: str) -> Figures:
    rank, unique = given.split()
    began = time.monotonic()
    try:
        handle = nccl.init(b64decode(unique), size=2, rank=int(rank))
        _wait(nccl, handle)
    except LibraryError as error:
        return {"refused": str(error), "seconds": round(time.monotonic() - began, 2)}
    nccl.abort(handle)
    return {"made_s": round(time.monotonic() - began, 2)}


def _wait(nccl: NcclLibrary, handle: Handle) -> None:
    deadline = time.monotonic() + SECONDS / 2
    while not nccl.ready(handle):
        assert time.monotonic() < deadline, "NCCL is not ready"
        time.sleep(0.001)


if __name__ == "__main__":
    run(communicator)
