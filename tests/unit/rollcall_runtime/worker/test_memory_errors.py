"""Errors of allocators, as torch, its back ends and Python raise them."""

import errno

import pytest

from rollcall_runtime.worker.memory_errors import TRAINER_MEMORY

OF_CPU = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)"
)


def raised_from(cause: Exception) -> Exception:
    error = ValueError("the step failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError(OF_CPU), "the memory of the container or its node does not suffice (4096 "),
        (MemoryError(), "the memory of the container or its node does not suffice: "),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "the memory of the container"),
        (RuntimeError("CUDA error: out of memory"), "the device's memory does not suffice: "),
        (
            RuntimeError("NPU out of memory. Tried to allocate 1.50 GiB (NPU 0; 61 GiB total)"),
            "the device's memory does not suffice (1.50 GiB more",
        ),
        (raised_from(MemoryError()), "the memory of the container"),
    ],
)
def test_memory_that_ran_out_is_recognized(error: Exception, says: str) -> None:
    found = TRAINER_MEMORY.explain(error)
    assert found is not None
    assert found.field == "spec.trainer.engine.config.maxTokensPerMicrobatch"
    assert found.problem.startswith(says)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("out of memory"),
    ],
)
def test_other_errors_are_left_alone(error: Exception) -> None:
    assert TRAINER_MEMORY.explain(error) is None
