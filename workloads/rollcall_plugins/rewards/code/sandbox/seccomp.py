"""Leave this process the system calls that computing needs; all others fail with EPERM.

So it has no sockets, starts no process and sends no signal, also none by a descriptor whose owner
it sets (F_SETOWN, O_ASYNC): kernels before 6.12 send that one to processes outside of a Landlock
domain. Source: seccomp(2); the numbers are those of the kernel's tables for x86_64 and arm64.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Sequence

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_X32 = 0x40000000  # numbers of another interface of the same processor

# Name, and the number on x86_64 and on aarch64, where some older calls do not exist.
_CALLS = """
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226,
munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
pread64 17 67, readv 19 65, writev 20 66, mremap 25 216, madvise 28 233, dup 32 23,
getpid 39 172, exit 60 93, uname 63 160, getcwd 79 17, sigaltstack 131 132,
gettid 186 178, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94,
newfstatat 262 79, readlinkat 267 78, getrandom 318 278, statx 332 291,
rseq 334 293, nanosleep 35 101, gettimeofday 96 169, getuid 102 174, geteuid 107 175,
getgid 104 176, getegid 108 177, getppid 110 173, faccessat 269 48, faccessat2 439 439,
ppoll 271 73, pselect6 270 72, getrusage 98 165, sysinfo 99 179, times 100 153, getrlimit 97 163,
set_tid_address 218 96, set_robust_list 273 99, stat 4 -, lstat 6 -, access 21 -,
readlink 89 -, poll 7 -, select 23 -
"""
_FCNTL, _IOCTL, _OPENAT, _OPEN = (72, 25), (16, 29), (257, 56), (2, None)
_SET_FLAGS, _ASYNC = 4, 0o20000  # F_SETFL, O_ASYNC
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC.
_FCNTLS = (0, 1, 2, 3, 1030)
_IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_... of the kernel


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def restrict() -> None:
    """Install the filter, for good. OSError if the kernel does not, or for another processor."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(f"there is no list of system calls for {machine}")
    program = _program(machine)
    instructions = (_Instruction * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    filtered = _Program(len(program), instructions)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filtered), 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def no_new_privileges() -> None:
    """What unprivileged Landlock and seccomp ask for. OSError if the kernel does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"no_new_privs: {os.strerror(number)}")


def _program(machine: str) -> list[_Instruction]:
    """Instructions: jumps are relative to the next one."""
    at = list(_ARCHITECTURES).index(machine)
    numbers = [call.split()[1 + at] for call in _CALLS.split(",")]
    allowed = [int(number) for number in numbers if number != "-"]
    fcntl = [*_if_equal(_SET_FLAGS, _unless_async(2)), *_if_one_of(_FCNTLS)]
    return [
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT),
        _Instruction(_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _Instruction(_RETURN, 0, 0, _KILL),
        _Instruction(_LOAD, 0, 0, _NUMBER_AT),
        _Instruction(_AT_LEAST, 0, 1, _X32),
        _Instruction(_RETURN, 0, 0, _FAIL),
        *_if_equal(_FCNTL[at], [_argument(1), *fcntl]),
        *_if_equal(_IOCTL[at], [_argument(1), *_if_one_of(_IOCTLS)]),
        *_if_equal(_OPENAT[at], _unless_async(2)),
        *_if_equal(_OPEN[at], _unless_async(1)),
        *_if_one_of(allowed),
    ]


def _argument(index: int) -> _Instruction:
    """Load the low half of an argument: commands and flags are ints to the kernel."""
    return _Instruction(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index)


def _if_equal(value: int | None, then: list[_Instruction]) -> list[_Instruction]:
    """`then`, which ends in returns, where the loaded number is `value`; None: it never is."""
    return [] if value is None else [_Instruction(_EQUAL, 0, len(then), value), *then]


def _if_one_of(values: Sequence[int]) -> list[_Instruction]:
    """Allow a call where the loaded number is one of `values`, else fail it."""
    count = len(values)
    return [
        *(_Instruction(_EQUAL, count - at, 0, value) for at, value in enumerate(values)),
        _Instruction(_RETURN, 0, 0, _FAIL),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    ]


def _unless_async(index: int) -> list[_Instruction]:
    """Allow a call unless its argument has the flag that asks for signals."""
    return [
        _argument(index),
        _Instruction(_HAS_BIT, 1, 0, _ASYNC),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_RETURN, 0, 0, _FAIL),
    ]
