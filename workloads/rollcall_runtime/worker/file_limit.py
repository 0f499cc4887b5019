"""How many files and connections this process may have open."""

import resource
from contextlib import suppress

MAX_FILES = 2**20  # a higher limit slows down libraries that close all files


def file_limit() -> int:
    """The soft limit, at most MAX_FILES."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, MAX_FILES)


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one, if it is allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if file_limit() < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
