"""The file by which staged weights reach vLLM's workers."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

import pytest
import torch

from rollcall_plugins.inference.vllm.in_server.staged_file import StagedFileError, read, write
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer
from rollcall_runtime.sync.memory.exported_buffers import BufferPlace, place_of
from rollcall_runtime.sync.memory.shared_buffers import SharedBuffer
from tests.doubles.cuda_ipc import CudaIpc, cuda_ipc
from tests.unit.rollcall_runtime.sync.staging_memory import torch_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cuda_ipc"]


@pytest.fixture
def descriptor() -> Iterator[int]:
    found = os.memfd_create("staged")
    yield found
    os.close(found)


def path_of(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def with_description(descriptor: int, description: object, *, nbytes: int = 256) -> str:
    text = json.dumps(description).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, struct.pack("<Q", len(text)) + text, 0)
    os.ftruncate(descriptor, 8 + len(text) + nbytes)
    return path_of(descriptor)


def test_weights_come_back_bit_for_bit(descriptor: int) -> None:
    weights = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "none": torch.empty(0, 4),
        "turned": torch.randn(4, 6).t(),
    }
    write(descriptor, weights.items(), version=7)
    staged = read(path_of(descriptor))
    assert staged.version == 7
    assert [name for name, _ in staged.tensors] == list(weights)
    for name, tensor in staged.tensors:
        assert tensor.dtype == weights[name].dtype
        assert torch.equal(tensor, weights[name])


def test_weights_without_numbers_make_a_file(descriptor: int) -> None:
    write(descriptor, [("none", torch.empty(0, 4))], version=1)
    ((name, tensor),) = read(path_of(descriptor)).tensors
    assert (name, tensor.shape) == ("none", (0, 4))


def test_weights_that_lie_in_a_shared_buffer_are_read_there(descriptor: int) -> None:
    buffer = SharedBuffer(4096)
    there = torch.frombuffer(buffer.memory, dtype=torch.float32)[16:48].view(4, 8)
    there.copy_(torch.randn(4, 8))
    weights = {"there": there, "own": torch.randn(5), "turned": there.t(), "row": there[2]}
    write(descriptor, weights.items(), version=7, place_of=place_of)
    assert os.fstat(descriptor).st_size < 1024, "neither `there` nor `row` was written"
    staged = dict(read(path_of(descriptor)).tensors)
    assert all(torch.equal(staged[name], weights[name]) for name in weights)
    there.add_(1)
    assert torch.equal(staged["row"], weights["row"]), "it is the same memory"


def test_weights_on_a_card_are_read_there(descriptor: int, cuda_ipc: CudaIpc) -> None:
    buffer = DeviceBuffer(torch_memory("cuda"), 256)
    there = buffer.tensor(64, 128).view(torch.float32).view(4, 8)
    there.copy_(torch.randn(4, 8))
    weights = {"there": there, "own": torch.randn(5), "row": there[2]}
    places = {name: BufferPlace(buffer, at) for name, at in (("there", 64), ("row", 128))}
    at = {weights[name].data_ptr(): place for name, place in places.items()}
    write(descriptor, weights.items(), version=7, place_of=lambda tensor: at.get(tensor.data_ptr()))
    staged = dict(read(path_of(descriptor), torch.device("cuda", 0)).tensors)
    assert all(torch.equal(staged[name], weights[name]) for name in weights)
    there.add_(1)
    assert torch.equal(staged["row"], weights["row"]), "it is the same memory"
    assert not cuda_ipc.unmapped, "exported once, and mapped once"


def test_weights_on_a_card_are_no_weights_of_a_cpu(descriptor: int) -> None:
    path = with_description(descriptor, {"version": 1, "buffers": [["cuda", "{}"]], "tensors": []})
    with pytest.raises(StagedFileError, match="weights in cuda memory cannot be read on cpu"):
        read(path)


def test_a_file_that_is_gone_is_an_error(descriptor: int) -> None:
    path = with_description(
        descriptor, {"version": 1, "buffers": [["cpu", "/gone"]], "tensors": []}
    )
    with pytest.raises(FileNotFoundError):
        read(path)


def test_an_empty_shared_file_is_refused(descriptor: int) -> None:
    empty = os.memfd_create("empty")
    description = {"version": 1, "buffers": [["cpu", path_of(empty)]], "tensors": []}
    with pytest.raises(StagedFileError, match="the file is empty"):
        read(with_description(descriptor, description))
    os.close(empty)


def test_without_space_the_error_says_so() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="space"):  # noqa: PTH123
        write(full.fileno(), [("a", torch.ones(100_000))], version=1)


def test_a_dtype_that_the_format_lacks_is_named(descriptor: int) -> None:
    with pytest.raises(StagedFileError, match="odd has the dtype complex64"):
        write(descriptor, [("odd", torch.zeros(1, dtype=torch.complex64))], version=1)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (["a", "float32", [64], 4, 0], "outside the file"),
        (["a", "float32", [65], 0, 0], "outside the file"),
        (["a", "float32", [2**62, 4], 0, 0], "outside the file"),
        (["a", "float32", [-1], 0, 0], "outside the file"),
        (["a", "float32", [1], -8, 0], "outside the file"),
        (["a", "float32", [1], 2, 0], "outside the file"),
        (["a", "float32", [1], 0, -1], "outside the file"),
        (["a", "float32", [1], 0, 1], "described by"),
        (["a", "object", [1], 0, 0], "described by"),
        (["a", "float32", 3, 0, 0], "described by"),
        (["a", "float32", [1], 0], "described by"),
        (["a"], "described by"),
    ],
)
def test_a_tensor_outside_the_file_is_refused(
    descriptor: int, entry: list[object], problem: str
) -> None:
    # 256 bytes follow, of which some align the first tensor.
    path = with_description(
        descriptor, {"version": 1, "buffers": [], "tensors": [entry]}, nbytes=256
    )
    with pytest.raises(StagedFileError, match=problem):
        read(path)


@pytest.mark.parametrize(
    "description",
    [
        [],
        {"version": 1},
        {"version": 1, "tensors": []},
        {"version": 1, "tensors": [], "buffers": [["cpu"]]},
        {"version": "x", "buffers": [], "tensors": []},
    ],
)
def test_a_malformed_description_is_refused(descriptor: int, description: object) -> None:
    with pytest.raises(StagedFileError, match="malformed"):
        read(with_description(descriptor, description))


def test_a_description_longer_than_the_file_is_refused(descriptor: int) -> None:
    os.pwrite(descriptor, struct.pack("<Q", 2**40) + bytes(100), 0)
    with pytest.raises(StagedFileError, match="has 1099511627776 bytes"):
        read(path_of(descriptor))


def test_an_empty_file_is_refused(descriptor: int) -> None:
    with pytest.raises(StagedFileError, match="the file is empty"):
        read(path_of(descriptor))
