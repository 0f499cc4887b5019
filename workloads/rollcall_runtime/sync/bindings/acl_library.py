"""libascendcl.so by ctypes: device memory of an Ascend NPU, without torch_npu; and where CANN's
libraries are.

Signatures: acl_rt.h of CANN 8. Never run on an NPU.
"""

import ctypes
import os
from pathlib import Path

from rollcall_runtime.sync.bindings.c_library import CLibrary, Functions, load

_REPEATED = 100002  # aclInit was called in this process before
_HUGE_FIRST = 0
_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3
_COMPLETE = 1
_KEY_BYTES = 65
_ANY_PROCESS = 1  # may import it
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_DEFAULT_HOME = "/usr/local/Ascend/ascend-toolkit/latest"
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_OUT = ctypes.POINTER(ctypes.c_void_p)

_FUNCTIONS: Functions = {
    "aclInit": [ctypes.c_char_p],
    "aclrtGetDeviceCount": [ctypes.POINTER(ctypes.c_uint32)],
    "aclrtSetDevice": [ctypes.c_int32],
    "aclrtMalloc": [_OUT, _SIZE, _INT],
    "aclrtFree": [_POINTER],
    "aclrtMemset": [_POINTER, _SIZE, ctypes.c_int32, _SIZE],
    "aclrtMemcpy": [_POINTER, _SIZE, _POINTER, _SIZE, _INT],
    "aclrtCreateStream": [_OUT],
    "aclrtCreateEvent": [_OUT],
    "aclrtRecordEvent": [_POINTER, _POINTER],
    "aclrtQueryEventStatus": [_POINTER, ctypes.POINTER(_INT)],
}
_SHARING: Functions = {  # CANN 8.5 has them, the first of 8 do not
    "aclrtIpcMemGetExportKey": [_POINTER, _SIZE, ctypes.c_char_p, _SIZE, ctypes.c_uint64],
    "aclrtIpcMemImportByKey": [_OUT, ctypes.c_char_p, ctypes.c_uint64],
    "aclrtIpcMemClose": [ctypes.c_char_p],
}


def locate(name: str) -> str:
    """The path of a library of CANN; ImportError lists the folders that do not have it."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    homes = [os.environ[home] for home in _HOMES if home in os.environ]
    folders += [str(Path(home) / "lib64") for home in (*homes, _DEFAULT_HOME)]
    for folder in folders:
        if (Path(folder) / name).exists():
            return str(Path(folder) / name)
    raise ImportError(f"{name} of CANN is in none of {', '.join(folders)}", name=name)


class AclLibrary:
    """The library at `path` (ImportError). Methods raise LibraryError.

    Streams and events are never destroyed: they are freed when the process that uses them ends.
    """

    def __init__(self, path: str) -> None:
        self._library = CLibrary(
            load("libascendcl.so", iter([path])),
            functions=_FUNCTIONS,
            optional=_SHARING,
            describe="",
        )

    def start(self, device: int) -> None:
        """Initialize, and make `device` modulo the number of devices the thread's device."""
        self._library.call("aclInit", None, accept=(0, _REPEATED))
        count = ctypes.c_uint32()
        self._library.call("aclrtGetDeviceCount", ctypes.byref(count))
        self._library.call("aclrtSetDevice", device % max(count.value, 1))

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` of device memory. LibraryError if there is no room."""
        return self._made("aclrtMalloc", nbytes, _HUGE_FIRST)

    def free(self, pointer: int) -> None:
        """Free the device memory that `allocate` gave at this address."""
        self._library.call("aclrtFree", pointer)

    def zero(self, pointer: int, nbytes: int) -> None:
        """Fill device memory with zeros."""
        self._library.call("aclrtMemset", pointer, nbytes, 0, nbytes)

    def stream(self) -> int:
        """The handle of a new stream."""
        return self._made("aclrtCreateStream")

    def event(self) -> int:
        """The handle of a new event."""
        return self._made("aclrtCreateEvent")

    def to_device(self, pointer: int, host: int, nbytes: int) -> None:
        """Copy from host memory."""
        self._library.call("aclrtMemcpy", pointer, nbytes, host, nbytes, _TO_DEVICE)

    def to_host(self, host: int, pointer: int, nbytes: int) -> None:
        """Copy to host memory."""
        self._library.call("aclrtMemcpy", host, nbytes, pointer, nbytes, _TO_HOST)

    def within(self, to: int, pointer: int, nbytes: int) -> None:
        """Copy from device memory to device memory."""
        self._library.call("aclrtMemcpy", to, nbytes, pointer, nbytes, _WITHIN)

    @property
    def can_share_memory(self) -> bool:
        """Whether the library can share device memory between processes."""
        return self._library.has(*_SHARING)

    def export(self, pointer: int, nbytes: int) -> str:
        """A key by which any process of this host imports an allocation; whole pages alone."""
        key = ctypes.create_string_buffer(_KEY_BYTES)
        self._library.call(
            "aclrtIpcMemGetExportKey", pointer, nbytes, key, _KEY_BYTES, _ANY_PROCESS
        )
        return key.value.decode()

    def import_(self, key: str) -> int:
        """The address, in this process, of memory that another process exported."""
        return self._made("aclrtIpcMemImportByKey", key.encode(), 0)

    def close(self, key: str) -> None:
        """End the import of another process's memory that has this key."""
        self._library.call("aclrtIpcMemClose", key.encode())

    def record(self, event: int, stream: int) -> None:
        """Complete `event` when the stream has done all work that is in it now."""
        self._library.call("aclrtRecordEvent", event, stream)

    def completed(self, event: int) -> bool:
        """Whether `event` is complete."""
        status = ctypes.c_int()
        self._library.call("aclrtQueryEventStatus", event, ctypes.byref(status))
        return status.value == _COMPLETE

    def _made(self, function: str, *arguments: int | bytes) -> int:
        made = ctypes.c_void_p()
        self._library.call(function, ctypes.byref(made), *arguments)
        return made.value or 0
