"""Reads by a NIXL agent."""

from rollcall_plugins.transports.nixl.agent import ERRORS, ReadState
from rollcall_plugins.transports.nixl.engine import NixlEngine
from rollcall_runtime.sync.engines.pull.peer_read_session import PullSession
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead


class NixlSession(PullSession):
    """The library's errors derive from Exception directly."""

    _library_errors = (RuntimeError, *ERRORS)


class NixlRead(LibraryRead):
    """One read of a peer's memory, by NIXL's handle of it."""

    def __init__(self, engine: NixlEngine, handle: int, peer: str) -> None:
        self._engine, self._handle, self._peer = engine, handle, peer
        self._done = False

    def done(self) -> bool:
        state = self._engine.agent.state(self._handle)
        if state is ReadState.FAILED:
            raise RuntimeError(f"a read from {self._peer} failed")
        self._done = state is ReadState.DONE
        return self._done

    def release(self) -> None:
        self._engine.read_ended(self._peer, failed=not self._done)
        self._engine.agent.release(self._handle)
