"""Leave this process the system calls that computing needs; all others fail with EPERM.

So it has no sockets, starts no process and sends no signal. Source: seccomp(2); the numbers are
those of the kernel's tables for x86_64 and arm64.
"""

import ctypes
import errno
import os
import platform

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF instructions
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # in struct seccomp_data
_X32 = 0x40000000  # numbers of another interface of the same processor

# Name, and the number on x86_64 and on aarch64, where some older calls do not exist.
_CALLS = """
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226,
munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
ioctl 16 29, pread64 17 67, readv 19 65, writev 20 66, mremap 25 216, madvise 28 233, dup 32 23,
getpid 39 172, exit 60 93, uname 63 160, fcntl 72 25, getcwd 79 17, sigaltstack 131 132,
gettid 186 178, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94,
openat 257 56, newfstatat 262 79, readlinkat 267 78, getrandom 318 278, statx 332 291,
rseq 334 293, nanosleep 35 101, gettimeofday 96 169, getuid 102 174, geteuid 107 175,
getgid 104 176, getegid 108 177, getppid 110 173, faccessat 269 48, faccessat2 439 439,
ppoll 271 73, pselect6 270 72, getrusage 98 165, sysinfo 99 179, times 100 153, getrlimit 97 163,
set_tid_address 218 96, set_robust_list 273 99, open 2 -, stat 4 -, lstat 6 -, access 21 -,
readlink 89 -, poll 7 -, select 23 -
"""
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
    column = 1 + list(_ARCHITECTURES).index(machine)
    numbers = [call.split()[column] for call in _CALLS.split(",")]
    allowed = [int(number) for number in numbers if number != "-"]
    count = len(allowed)
    return [
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE_AT),
        _Instruction(_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _Instruction(_RETURN, 0, 0, _KILL),
        _Instruction(_LOAD, 0, 0, _NUMBER_AT),
        _Instruction(_AT_LEAST, count, 0, _X32),
        *(_Instruction(_EQUAL, count - at, 0, number) for at, number in enumerate(allowed)),
        _Instruction(_RETURN, 0, 0, _FAIL),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    ]
