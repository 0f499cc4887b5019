"""Buffers are reused, but never while they are in use."""

import os
import threading

import pytest

from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.buffers import BufferPool, HostBuffer


def test_a_buffer_is_writable_and_zero_at_first() -> None:
    buffer = HostBuffer(100)
    assert bytes(buffer.memory) == bytes(100)
    buffer.memory[99] = 7
    assert buffer.memory[99] == 7


def test_a_buffer_may_be_empty() -> None:
    assert len(HostBuffer(0).memory) == 0


def received_into(memory: memoryview) -> int:
    """How many bytes the kernel writes there, as for a transport."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x" * len(memory))
        return os.readv(reading, [memory])
    finally:
        os.close(reading)
        os.close(writing)


def test_a_protected_buffer_is_read_and_not_written_to_by_a_transport() -> None:
    buffer = HostBuffer(5000)
    with buffer.write_protected(), buffer.write_protected():
        with pytest.raises(OSError, match="Bad address"):
            received_into(buffer.memory)
        assert bytes(buffer.memory) == bytes(5000)
    assert received_into(buffer.memory) == 5000


def test_a_buffer_is_protected_as_long_as_one_of_several_needs_it() -> None:
    buffer = HostBuffer(100)
    with buffer.write_protected():
        with buffer.write_protected():
            pass
        with pytest.raises(OSError, match="Bad address"):
            received_into(buffer.memory)
    assert received_into(buffer.memory) == 100


def test_an_empty_buffer_can_be_protected() -> None:
    with HostBuffer(0).write_protected():
        pass


def test_too_much_memory_is_an_error_of_this_process() -> None:
    with pytest.raises(ExhaustedError, match="cannot allocate") as caught:
        HostBuffer(1 << 50)
    assert caught.value.own_fault


def test_a_released_buffer_is_lent_again() -> None:
    pool = BufferPool(limit=1)
    first = pool.take(64, timeout=0)
    buffer = first.buffer
    first.release()
    with pool.take(64, timeout=0) as second:
        assert second.buffer is buffer


def test_a_pinned_buffer_is_never_lent() -> None:
    pool = BufferPool(limit=2)
    lent = pool.take(64, timeout=0)
    reader = lent.buffer.hold()
    lent.release()
    with pool.take(64, timeout=0) as other:
        assert other.buffer is not reader.buffer
        with pytest.raises(ExhaustedError, match="all 2 weight buffers"):
            pool.take(64, timeout=0.01)


def test_taking_waits_for_a_release_by_another_thread() -> None:
    pool = BufferPool(limit=1)
    lent = pool.take(64, timeout=0)
    timer = threading.Timer(0.02, lent.release)
    timer.start()
    with pool.take(64, timeout=5):
        assert pool.state.in_use == 1
    timer.join()


def test_releasing_twice_ends_one_use_only() -> None:
    pool = BufferPool(limit=1)
    lent = pool.take(64, timeout=0)
    other = lent.buffer.hold()
    lent.release()
    lent.release()
    assert lent.buffer.in_use
    other.release()
    assert not lent.buffer.in_use


def test_a_dropped_pin_is_released() -> None:
    pool = BufferPool(limit=1)
    pool.take(64, timeout=0)
    assert pool.state.in_use == 0


def test_another_size_replaces_free_buffers() -> None:
    pool = BufferPool(limit=1)
    pool.take(64, timeout=0).release()
    with pool.take(128, timeout=0) as bigger:
        assert bigger.buffer.nbytes == 128
        assert pool.state.buffers == 1


def test_small_buffers_are_not_waited_for() -> None:
    pool = BufferPool(limit=1, spare_bytes=3 * 64)
    holds = [pool.take(64, timeout=0) for _ in range(3)]
    with pytest.raises(ExhaustedError, match="all 3"):
        pool.take(64, timeout=0)
    for hold in holds:
        hold.release()
    with pool.take(64, timeout=0):
        assert pool.state.buffers == 1
