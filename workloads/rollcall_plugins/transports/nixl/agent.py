"""A NIXL agent, by the low-level bindings of the `nixl` package.

Not the package's own `nixl_agent`: its progress thread polls without a pause, so that each process
keeps a core busy for as long as it lives, which starves all else where processes outnumber cores.
"""

import ctypes
from enum import Enum
from typing import Any

if hasattr(ctypes.CDLL(None), "ucs_init"):
    raise ImportError(
        "PyTorch has loaded a UCX of its own for the whole process, which makes NIXL's UCX abort; "
        "use a PyTorch that is not linked with UCX"
    )

from nixl import _bindings as bindings

ERRORS: tuple[type[Exception], ...] = tuple(
    found
    for name, found in vars(bindings).items()
    if name.endswith("Error") and isinstance(found, type) and issubclass(found, Exception)
)
_MEMORY = bindings.DRAM_SEG


class ReadState(Enum):
    """The state of a read."""

    BUSY = "busy"
    DONE = "done"
    FAILED = "failed"


class NixlAgent:
    """One agent with one backend, for use from several threads. Methods raise one of `ERRORS`.

    A progress thread moves bytes when a socket is ready, and polls every `progress_seconds`,
    because some of UCX's transports signal nothing.
    """

    errors = ERRORS

    def __init__(self, name: str, *, backend: str, progress_seconds: float) -> None:
        config = bindings.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = round(progress_seconds * 1e6)
        config.syncMode = bindings.NIXL_THREAD_SYNC_STRICT
        self.name = name
        self._agent: Any = bindings.nixlAgent(name, config)
        self._agent.createBackend(backend, {})

    def register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory; returns the handle for `unregister`."""
        memory = bindings.nixlRegDList(_MEMORY, [(address, nbytes, 0, "")])
        self._agent.registerMem(memory)
        return memory

    def unregister(self, memory: object) -> None:
        """The memory is about to be freed."""
        self._agent.deregisterMem(memory)

    def metadata(self) -> bytes:
        """What a peer needs to read all memory that is registered now."""
        metadata: bytes = self._agent.getLocalMD()
        return metadata

    def add_peer(self, metadata: bytes) -> None:
        """Add a peer; call `remove_peer` first if its metadata has changed."""
        self._agent.loadRemoteMD(metadata)

    def remove_peer(self, peer: str) -> None:
        """Disconnect from a peer."""
        self._agent.invalidateRemoteMD(peer)

    def read(self, peer: str, *, remote: int, local: int, nbytes: int) -> int:
        """Begin to read; returns a handle to `release`."""
        here = bindings.nixlXferDList(_MEMORY, [(local, nbytes, 0)])
        there = bindings.nixlXferDList(_MEMORY, [(remote, nbytes, 0)])
        handle: int = self._agent.createXferReq(bindings.NIXL_READ, here, there, peer)
        try:
            self._agent.postXferReq(handle)
        except ERRORS:
            self.release(handle)
            raise
        return handle

    def state(self, handle: int) -> ReadState:
        """The state of a read; a failure may raise instead."""
        status = self._agent.getXferStatus(handle)
        if status == bindings.NIXL_IN_PROG:
            return ReadState.BUSY
        return ReadState.DONE if status == bindings.NIXL_SUCCESS else ReadState.FAILED

    def release(self, handle: int) -> None:
        """Free a read's handle, abandoning the read if it has not ended."""
        self._agent.releaseXferReq(handle)
