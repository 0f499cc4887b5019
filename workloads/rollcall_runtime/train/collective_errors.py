"""Failing on all ranks or on none: a rank that gave up alone would leave the others waiting."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def raise_on_all_ranks(gather: Callable[[Any], list[Any]]) -> Iterator[None]:
    """OSError on every rank if the body raises one on any. The body may be collective.

    `gather` is collective: every rank's value on all ranks.
    """
    own: OSError | None = None
    try:
        yield
    except OSError as error:
        own = error
    report = (own.errno or errno.EIO, own.strerror or str(own)) if own is not None else None
    failed = next((found for found in gather(report) if found is not None), None)
    if failed is not None:
        raise OSError(*failed) from own
