"""Take this process's right to files away, but for reading some directories, and to sockets of TCP.

Source: Documentation/userspace-api/landlock.rst of Linux. The numbers of the system calls are the
same on all architectures.
"""

import ctypes
import os
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # flag: only say which version there is
_PATH_BENEATH = 1  # kind of rule
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# What versions 1, 2, 3 and 5 can restrict: 13 rights, then REFER, TRUNCATE and IOCTL_DEV.
_FILES = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_TCP = 0b11  # bind and connect; since version 4
_SCOPES = 0b11  # abstract UNIX sockets and signals; since version 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.c_uint64),
        ("network", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


def version() -> int:
    """The kernel's version of Landlock; 0: it has none, or it is switched off."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION)))


def restrict(readable: Iterable[str]) -> None:
    """Leave this process, for good, reading beneath `readable` alone.

    `no_new_privs` must be set. OSError if the kernel does not.
    """
    known = version()
    if not known:
        raise OSError("the kernel has no Landlock (Linux 5.13), or it is switched off")
    ruleset = _Ruleset(
        (1 << _FILES[min(known, max(_FILES))]) - 1,
        _TCP if known >= 4 else 0,
        _SCOPES if known >= 6 else 0,
    )
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    rules = _checked(_libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    for path in readable:
        directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _PathBeneath(_READ_FILE | _READ_DIR, directory)
        _checked(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0))
        os.close(directory)
    _checked(_libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
