"""NIXL's bindings, as much of them as `nixl` needs.

Not the package's own `nixl_agent`: it has the progress thread look again without any pause, so that
each process keeps a core busy for as long as it lives. With more processes than cores nothing else
gets on.
"""

from enum import Enum
from typing import Any

from nixl import _bindings as bindings

ERRORS: tuple[type[Exception], ...] = tuple(
    found
    for name, found in vars(bindings).items()
    if name.endswith("Error") and isinstance(found, type) and issubclass(found, Exception)
)
_MEMORY = bindings.DRAM_SEG


class State(Enum):
    """Of a read."""

    BUSY = "busy"
    DONE = "done"
    FAILED = "failed"


class Agent:
    """One agent with one backend, for use from several threads. Methods raise one of `ERRORS`.

    A thread of its own moves bytes when a socket is ready, and looks at least every
    `progress_seconds`, because some of UCX's transports wake nobody.
    """

    def __init__(self, name: str, *, backend: str, progress_seconds: float) -> None:
        config = bindings.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = round(progress_seconds * 1e6)
        config.syncMode = bindings.NIXL_THREAD_SYNC_STRICT
        self.name = name
        self._agent: Any = bindings.nixlAgent(name, config)
        self._agent.createBackend(backend, {})

    def register(self, address: int, nbytes: int) -> object:
        """Let peers read this memory; what `unregister` takes."""
        memory = bindings.nixlRegDList(_MEMORY, [(address, nbytes, 0, "")])
        self._agent.registerMem(memory)
        return memory

    def unregister(self, memory: object) -> None:
        """The memory is about to go."""
        self._agent.deregisterMem(memory)

    def metadata(self) -> bytes:
        """What a peer needs to read all memory that is registered now."""
        told: bytes = self._agent.getLocalMD()
        return told

    def meet(self, metadata: bytes) -> None:
        """Know a peer; forget it first if it was known."""
        self._agent.loadRemoteMD(metadata)

    def forget(self, peer: str) -> None:
        """Disconnect from a peer."""
        self._agent.invalidateRemoteMD(peer)

    def read(self, peer: str, *, remote: int, local: int, nbytes: int) -> int:
        """Begin to read; the handle is to be released."""
        here = bindings.nixlXferDList(_MEMORY, [(local, nbytes, 0)])
        there = bindings.nixlXferDList(_MEMORY, [(remote, nbytes, 0)])
        handle: int = self._agent.createXferReq(bindings.NIXL_READ, here, there, peer)
        try:
            self._agent.postXferReq(handle)
        except ERRORS:
            self.release(handle)
            raise
        return handle

    def state(self, handle: int) -> State:
        """How far a read is; a failure may raise instead."""
        status = self._agent.getXferStatus(handle)
        if status == bindings.NIXL_IN_PROG:
            return State.BUSY
        return State.DONE if status == bindings.NIXL_SUCCESS else State.FAILED

    def release(self, handle: int) -> None:
        """Free a read's handle, giving it up if it has not ended."""
        self._agent.releaseXferReq(handle)
