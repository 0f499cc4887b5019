"""Buffers that other processes map: found by a tensor's address, and gone with their owner."""

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import torch

from rollcall_runtime.sync.memory.exported_buffers import BufferPlace, place_of
from rollcall_runtime.sync.memory.shared_buffers import MappedFile, SharedBuffer
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_runtime.sync.weights.test_catch_up import SEVEN, snapshot


def flat(buffer: SharedBuffer) -> torch.Tensor:
    return torch.frombuffer(buffer.memory, dtype=torch.uint8)


def test_another_process_reads_what_was_written() -> None:
    buffer = SharedBuffer(5000)
    flat(buffer)[4999] = 7
    look = f"import sys; sys.stdout.buffer.write(open({buffer.export()!r}, 'rb').read()[4990:])"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, check=True)
    assert found.stdout == bytes(9) + b"\x07"


def test_a_tensor_in_it_is_found_by_its_offset() -> None:
    buffer = SharedBuffer(4096)
    assert place_of(flat(buffer)[64:128]) == BufferPlace(buffer, 64)
    assert place_of(flat(buffer)) == BufferPlace(buffer, 0)


def test_what_does_not_lie_whole_in_it_is_not() -> None:
    buffer = SharedBuffer(4096)
    assert place_of(torch.zeros(8)) is None
    assert place_of(flat(buffer).view(64, 64).t()) is None, "with gaps"
    assert place_of(flat(buffer)[1:].clone()) is None


def test_its_file_goes_with_it() -> None:
    buffer = SharedBuffer(4096)
    path = buffer.export()
    assert Path(path).exists()
    del buffer
    gc.collect()
    assert not Path(path).exists()


def test_an_empty_one_can_be_made() -> None:
    assert SharedBuffer(0).memory.nbytes == 0


def test_a_private_mapping_keeps_writes_to_itself_and_ends_with_its_last_tensor() -> None:
    buffer, unmapped = SharedBuffer(4096), list[str]()
    descriptor = os.open(buffer.export(), os.O_RDONLY)
    mapped = MappedFile(descriptor, 4096, private=True, unmapped=lambda: unmapped.append("it"))
    os.close(descriptor)
    flat(buffer)[1] = 7
    tensor = torch.frombuffer(mapped.memory, dtype=torch.uint8)[:2]
    assert tensor.tolist() == [0, 7]
    tensor[0] = 9
    assert flat(buffer)[0] == 0
    del mapped
    assert unmapped == []
    del tensor
    assert unmapped == ["it"]


def test_a_staging_area_that_is_shared_has_every_tensor_in_a_file() -> None:
    held = snapshot()
    stage = StagingArea(shared=True)
    with stage.staging(SEVEN, held.manifest, timeout=0) as buffer:
        buffer.write(0, held.buffer.memory)
    with stage.staged(SEVEN) as weights:
        places = {name: place_of(tensor) for name, tensor in weights.tensors() if tensor.numel()}
        assert None not in places.values()
        path = next(place for place in places.values() if place).buffer.export()
        with open(path, "rb") as file:  # noqa: PTH123 - a path of /proc
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert memory[: held.buffer.nbytes] == bytes(held.buffer.memory)
