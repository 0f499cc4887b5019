"""A buffer in device memory is like one in host memory, but host code cannot read it."""

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.buffers import BufferPool
from rollcall_runtime.sync.memory.device_allocators import LibraryAllocator, device_allocator
from rollcall_runtime.sync.memory.device_buffers import (
    DeviceAllocator,
    DeviceBuffer,
    device_buffer_factory,
)
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync import staging_memory
from tests.unit.rollcall_runtime.sync.staging_memory import gpu_memory, npu_memory, torch_memory

Made = Callable[[], DeviceAllocator]


@pytest.fixture(
    params=[
        torch_memory,
        pytest.param(gpu_memory, marks=pytest.mark.slow),  # the doubles are compiled
        pytest.param(npu_memory, marks=pytest.mark.slow),
    ]
)
def memory(request: pytest.FixtureRequest) -> DeviceAllocator:
    """Torch's, and that of the doubles of two libraries."""
    if request.param is not torch_memory:
        doubles.build()
    made: Made = request.param
    return made()


def test_what_is_written_is_read(memory: DeviceAllocator) -> None:
    buffer = DeviceBuffer(memory, 1000)
    buffer.write(0, memoryview(bytearray(range(250)) * 4))
    assert bytes(buffer.read(248, 252)) == bytes([248, 249, 0, 1])
    window = buffer.window(100, 300).window(50, 150)
    window.write(0, memoryview(bytearray(b"new")))
    assert bytes(window.read(0, 4)) == b"new" + bytes([153])
    assert bytes(buffer.read(149, 154)) == bytes([149]) + b"new" + bytes([153])
    assert window.address == buffer.address + 150
    assert (buffer.device, window.device) == (memory.device, memory.device)


def test_a_copy_goes_to_the_beginning_of_the_scratch(memory: DeviceAllocator) -> None:
    buffer = DeviceBuffer(memory, 100)
    buffer.write(0, memoryview(bytearray(range(100))))
    scratch = buffer.scratch(60)
    assert bytes(buffer.read(10, 20, scratch)) == bytes(range(10, 20))
    assert bytes(scratch[:10]) == bytes(range(10, 20))


def test_there_is_no_view_of_it(memory: DeviceAllocator) -> None:
    with pytest.raises(TypeError, match=f"in {memory.device} memory"):
        _ = DeviceBuffer(memory, 8).memory
    with pytest.raises(TypeError, match=f"in {memory.device} memory"):
        _ = DeviceBuffer(memory, 8).window(2, 4).memory


def test_bytes_beyond_its_end_are_refused(memory: DeviceAllocator) -> None:
    buffer = DeviceBuffer(memory, 10)
    with pytest.raises(ValueError, match=r"bytes \[8, 11\) are outside of a buffer of 10"):
        buffer.read(8, 11)
    with pytest.raises(ValueError, match=r"bytes \[8, 11\) are outside of a buffer of 10"):
        buffer.write(8, memoryview(bytearray(3)))


def test_it_may_be_empty(memory: DeviceAllocator) -> None:
    assert bytes(DeviceBuffer(memory, 0).read(0, 0)) == b""


def test_too_much_memory_is_an_error_of_this_process(memory: DeviceAllocator) -> None:
    with pytest.raises(
        ExhaustedError, match=f"cannot allocate .* in {memory.device} memory"
    ) as caught:
        DeviceBuffer(memory, 1 << 50)
    assert caught.value.own_fault


def test_a_pool_lends_a_buffer_again_once_it_has_no_hold(memory: DeviceAllocator) -> None:
    pool = BufferPool(limit=1, make=device_buffer_factory(memory))
    first = pool.take(64, timeout=0)
    buffer = first.buffer
    with pytest.raises(ExhaustedError, match="in use"):
        pool.take(64, timeout=0.01)
    first.release()
    with pool.take(64, timeout=0) as second:
        assert second.buffer is buffer


@pytest.mark.slow
def test_it_is_given_back_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.build()
    memory, freed = gpu_memory(), threading.Event()
    addresses: list[int] = []

    def free(pointer: int) -> None:
        addresses.append(pointer)
        freed.set()

    monkeypatch.setattr(memory.driver, "free", free)
    buffer = DeviceBuffer(memory, 64)
    address = buffer.address
    assert not addresses
    del buffer
    assert freed.wait(5)
    assert addresses == [address]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpu_memory", "npu_memory"])
def test_a_host_process_that_dereferences_its_address_dies(name: str) -> None:
    doubles.build()
    script = (
        f"import ctypes; from {staging_memory.__name__} import {name} as made\n"
        "from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer\n"
        "buffer = DeviceBuffer(made(), 64); print('made', flush=True)\n"
        "ctypes.string_at(buffer.address, 1)\n"
    )
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=paths, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.returncode) == ("made\n", -signal.SIGSEGV), ended.stderr


@pytest.mark.slow
def test_another_process_of_the_host_can_import_npu_memory() -> None:
    doubles.build()
    buffer = DeviceBuffer(npu_memory(), 3 << 20)
    buffer.write(1 << 20, memoryview(bytearray(b"weights")))
    key = buffer.export()
    assert buffer.export() == key
    library = AclLibrary(str(doubles.FOLDER / "libascendcl.so"))
    library.start(0)
    pointer, found = library.import_(key), bytearray(7)
    memory = npu_memory()
    memory.driver.to_host(_address(found), pointer + (1 << 20), 7)
    assert found == b"weights"
    library.close(key)


def test_memory_of_torch_that_is_on_no_gpu_stays_in_its_process() -> None:
    with pytest.raises(NotImplementedError, match="cannot be shared with another process"):
        DeviceBuffer(torch_memory(), 8).export()


def test_a_worker_without_an_accelerator_has_no_device_memory() -> None:
    assert device_allocator("cpu") is None


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    with pytest.raises(ImportError, match=r"libascendcl.so of CANN is in none of /nowhere"):
        device_allocator("npu")


@pytest.mark.slow
def test_npu_memory_is_the_librarys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.build()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(doubles.FOLDER))
    assert isinstance(device_allocator("npu"), LibraryAllocator)


def _address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
