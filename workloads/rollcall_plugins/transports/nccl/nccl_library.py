"""libnccl.so.2 by ctypes. Signatures: nccl.h of NCCL 2.29.7.

The oldest library is 2.18; ncclCommShrink came with 2.27, ncclCommGrow with 2.29.
"""

import ctypes
from collections.abc import Iterator, Sequence

from rollcall_runtime.sync.bindings.c_library import (
    CLibrary,
    Functions,
    LibraryError,
    in_wheels,
    load,
)

_ID_BYTES = 128
_SUCCESS, _IN_PROGRESS = 0, 7
_UINT8 = 1
_SHRINK_ABORT = 1
_UNDEFINED = -(1 << 31)
_MAGIC = 0xCAFEBEEF
_OLDEST = 21800  # the version whose configuration is used here; newer libraries know it


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_char * _ID_BYTES)]

    @classmethod
    def of(cls, raw: bytes) -> "UniqueId":
        """The id with these bytes; ValueError when they are too few or too many."""
        if len(raw) != _ID_BYTES:
            raise ValueError(f"a unique id has {_ID_BYTES} bytes, not {len(raw)}")
        return cls.from_buffer_copy(raw)


class Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.18, without blocking calls; all else is left to the library."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]

    @classmethod
    def non_blocking(cls) -> "Config":
        """What all communicators are made with."""
        undefined = [_UNDEFINED] * 3
        return cls(ctypes.sizeof(cls), _MAGIC, _OLDEST, 0, *undefined, None, _UNDEFINED)


_COMM, _OUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_INT, _ID, _CONFIG = ctypes.c_int, ctypes.POINTER(UniqueId), ctypes.POINTER(Config)
_FUNCTIONS: Functions = {
    "ncclGetVersion": [ctypes.POINTER(_INT)],
    "ncclGetUniqueId": [_ID],
    "ncclCommInitRankConfig": [_OUT, _INT, UniqueId, _INT, _CONFIG],
    "ncclCommGetAsyncError": [_COMM, ctypes.POINTER(_INT)],
    "ncclCommAbort": [_COMM],
    "ncclBroadcast": [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        _INT,
        _INT,
        _COMM,
        ctypes.c_void_p,
    ],
}
_OPTIONAL: Functions = {
    "ncclCommShrink": [_COMM, ctypes.POINTER(_INT), _INT, _OUT, _CONFIG, _INT],
    "ncclCommGetUniqueId": [_COMM, _ID],
    "ncclCommGrow": [_COMM, _INT, _ID, _INT, _OUT, _CONFIG],
}
_STARTED = (_SUCCESS, _IN_PROGRESS)


def _candidates(path: str) -> Iterator[str]:
    if path:
        yield path
        return
    yield "libnccl.so.2"  # first by name: what torch has loaded is used, not a second copy
    yield from in_wheels("nccl/lib/libnccl.so.2")


class Handle:
    """A communicator in the making, or made. NCCL fills `pointer` at some later moment, so the
    object must outlive the making; `parent` is the one that NCCL derives it from, whose state
    shows meanwhile how that goes.
    """

    def __init__(self, parent: "Handle | None" = None) -> None:
        self.pointer = ctypes.c_void_p()
        self.parent = parent


class NcclLibrary:
    """The library at `path`, or torch's own, or that of NVIDIA's wheel (ImportError).

    All calls return at once, but for `abort`; `ready` says whether a communicator is.
    Methods raise LibraryError.
    """

    def __init__(self, path: str = "") -> None:
        self._library = CLibrary(
            load("libnccl.so.2", _candidates(path)),
            functions=_FUNCTIONS,
            optional=_OPTIONAL,
            describe="ncclGetErrorString",
        )
        version = ctypes.c_int()
        self._library.call("ncclGetVersion", ctypes.byref(version))
        self.version = version.value
        if self.version < _OLDEST:
            raise ImportError(f"NCCL {self.version} is older than {_OLDEST}")
        self.can_shrink = self._library.has("ncclCommShrink")
        self.can_grow = self._library.has("ncclCommGrow", "ncclCommGetUniqueId")

    def unique_id(self) -> bytes:
        """Create the id of a communicator; the process that calls this must be its rank 0."""
        created = UniqueId()
        self._library.call("ncclGetUniqueId", ctypes.byref(created))
        return bytes(created)

    def init(self, unique_id: bytes, *, size: int, rank: int) -> Handle:
        """Begin to make a communicator."""
        made, config = Handle(), Config.non_blocking()
        self._library.call(
            "ncclCommInitRankConfig",
            ctypes.byref(made.pointer),
            size,
            UniqueId.of(unique_id),
            rank,
            ctypes.byref(config),
            accept=_STARTED,
        )
        return made

    def shrink(self, parent: Handle, *, excluded: Sequence[int]) -> Handle:
        """Begin to make a communicator of the parent's ranks but for `excluded`.

        What the parent has in flight is aborted, so it may hold dead ranks; it is of no use after.
        """
        made, config = Handle(parent), Config.non_blocking()
        ranks = (ctypes.c_int * len(excluded))(*excluded)
        self._library.call(
            "ncclCommShrink",
            parent.pointer,
            ranks,
            len(excluded),
            ctypes.byref(made.pointer),
            ctypes.byref(config),
            _SHRINK_ABORT,
            accept=_STARTED,
        )
        return made

    def grow_id(self, parent: Handle) -> bytes:
        """Create, at rank 0, the id that newcomers need."""
        created = UniqueId()
        self._library.call("ncclCommGetUniqueId", parent.pointer, ctypes.byref(created))
        return bytes(created)

    def grow(
        self, parent: Handle | None, unique_id: bytes | None, *, size: int, rank: int
    ) -> Handle:
        """Begin to make a communicator of the parent's ranks and newcomers.

        The parent's ranks give rank -1 (and the id at its rank 0 alone), newcomers no parent.
        """
        made, config = Handle(parent), Config.non_blocking()
        given = None if unique_id is None else ctypes.byref(UniqueId.of(unique_id))
        self._library.call(
            "ncclCommGrow",
            parent.pointer if parent else None,
            size,
            given,
            rank,
            ctypes.byref(made.pointer),
            ctypes.byref(config),
            accept=_STARTED,
        )
        return made

    def ready(self, handle: Handle) -> bool:
        """Whether what was begun has ended well; raises if it failed, then or by now."""
        if handle.pointer.value:  # an error that the parent had before is of no interest now
            handle.parent = None
            return self._settled(handle)
        if handle.parent is not None:
            self._settled(handle.parent)
        return False

    def broadcast(self, handle: Handle, pointer: int, nbytes: int, stream: int) -> None:
        """Put a broadcast from rank 0, in place, into the stream; `ready` before the next call."""
        self._library.call(
            "ncclBroadcast",
            pointer,
            pointer,
            nbytes,
            _UINT8,
            0,
            handle.pointer,
            stream,
            accept=_STARTED,
        )

    def abort(self, handle: Handle) -> None:
        """End what is in flight, and free the communicator; may take a while."""
        if handle.pointer.value:
            pointer, handle.pointer = handle.pointer, ctypes.c_void_p()
            self._library.call("ncclCommAbort", pointer)

    def _settled(self, handle: Handle) -> bool:
        state = ctypes.c_int()
        self._library.call("ncclCommGetAsyncError", handle.pointer, ctypes.byref(state))
        if state.value in _STARTED:
            return state.value == _SUCCESS
        raise LibraryError("asynchronous error", state.value, self._library.text(state.value))
