"""libhccl.so by ctypes. Signatures: hccl.h of CANN 8. Never run on an NPU.

Light to import: the process that owns a communicator needs nothing else.
"""

import ctypes

from rollcall_runtime.sync.bindings.c_library import CLibrary, Functions, LibraryError, load

_ROOT_BYTES = 4108
_INT8 = 0  # the one type of a byte that every product broadcasts


class RootInfo(ctypes.Structure):
    """`HcclRootInfo` of the C interface: what the ranks of a communicator meet by."""

    _fields_ = [("internal", ctypes.c_char * _ROOT_BYTES)]


_COMM, _OUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_INT, _UINT32 = ctypes.c_int, ctypes.c_uint32
_FUNCTIONS: Functions = {
    "HcclGetRootInfo": [ctypes.POINTER(RootInfo)],
    "HcclCommInitRootInfo": [_UINT32, ctypes.POINTER(RootInfo), _UINT32, _OUT],
    "HcclBroadcast": [
        ctypes.c_void_p,
        ctypes.c_uint64,
        _INT,
        _UINT32,
        _COMM,
        ctypes.c_void_p,
    ],
    "HcclCommDestroy": [_COMM],
}
_OPTIONAL: Functions = {"HcclGetCommAsyncError": [_COMM, ctypes.POINTER(_INT)]}


class HcclLibrary:
    """The library at `path` (ImportError). Calls block, and nothing ends one that hangs but the
    end of its process. Methods raise LibraryError.
    """

    def __init__(self, path: str) -> None:
        self._library = CLibrary(
            load("libhccl.so", iter([path])),
            functions=_FUNCTIONS,
            optional=_OPTIONAL,
            describe="HcclGetErrorString",
        )

    def root_info(self) -> bytes:
        """Create what all ranks need to find each other; the caller must be rank 0."""
        created = RootInfo()
        self._library.call("HcclGetRootInfo", ctypes.byref(created))
        return bytes(created)

    def init(self, root_info: bytes, *, size: int, rank: int) -> int:
        """Make a communicator; waits for all ranks."""
        if len(root_info) != _ROOT_BYTES:
            raise ValueError(f"root info has {_ROOT_BYTES} bytes, not {len(root_info)}")
        made = ctypes.c_void_p()
        info = RootInfo.from_buffer_copy(root_info)
        self._library.call(
            "HcclCommInitRootInfo", size, ctypes.byref(info), rank, ctypes.byref(made)
        )
        return made.value or 0

    def broadcast(self, communicator: int, pointer: int, nbytes: int, stream: int) -> None:
        """Put a broadcast from rank 0, in place, into the stream."""
        self._library.call("HcclBroadcast", pointer, nbytes, _INT8, 0, communicator, stream)

    def check(self, communicator: int) -> None:
        """Raise what has gone wrong with a peer, as far as the library reports it."""
        if self._library.has("HcclGetCommAsyncError"):
            state = ctypes.c_int()
            self._library.call("HcclGetCommAsyncError", communicator, ctypes.byref(state))
            if state.value:
                raise LibraryError("HCCL", state.value, self._library.text(state.value))

    def destroy(self, communicator: int) -> None:
        """Free a communicator that has nothing in flight."""
        self._library.call("HcclCommDestroy", communicator)
