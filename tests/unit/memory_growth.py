"""Whether something leaves memory behind."""

import contextlib
import gc
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def no_growth(*, most: int, measured: bool = True) -> Iterator[None]:
    """AssertionError if more than `most` bytes that were allocated in the block are still held.

    What is filled at the first use, such as caches, should be filled before. Python runs at half
    its speed meanwhile, unless it is not `measured`.
    """
    if not measured:
        yield
        return
    gc.collect()
    tracemalloc.start()
    try:
        yield
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left <= most, f"{left / 2**20:.1f} MiB are left"
