"""A weight-sync engine to start from: fill the three places marked FILL."""

from collections.abc import Sequence
from typing import ClassVar

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.bucket_transfer import BucketTransfer, TransferHandle
from rollcall_runtime.sync.engine import EngineKind
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedEngine, ThreadedSession
from rollcall_runtime.sync.errors import SyncError, TimedOutError
from rollcall_runtime.sync.memory.buffers import Buffer
from rollcall_runtime.sync.rendezvous import SessionRendezvous


class MyTransport(ThreadedEngine):
    """The base class tracks sessions, hosts the rendezvous and limits what may be stuck."""

    name = "example.my-transport"
    kind = EngineKind.GROUP
    devices = frozenset({"cpu"})  # serves workers of any device, from host memory

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> "MySession":
        return MySession(group=group, session=session, seats=seats, rank=rank, engine=self)


class MySession(ThreadedSession):
    """One forming of the group. Rank 0 sends; the others receive."""

    _library_errors: ClassVar = (OSError,)  # what your library raises

    def __init__(
        self,
        *,
        group: str,
        session: SessionId,
        seats: Sequence[Seat],
        rank: int,
        engine: MyTransport,
    ) -> None:
        super().__init__(group=group, session=session, seats=seats, rank=rank, engine=engine)
        self._connections: list = []
        self._transfer = BucketTransfer(
            start=self._start,
            raise_if_aborted=self._raise_if_aborted,
            settings=self.settings,
            bucket_done=self._trace_bucket,
        )

    def _connect(self, rendezvous: SessionRendezvous, deadline: float) -> None:
        """Open `_connections` until `deadline` (monotonic seconds); every seat is taken by now.

        `rendezvous` carries small values between the seats.
        """
        raise NotImplementedError("FILL 1: connect this seat to the others")

    def _start(self, chunk: memoryview, seconds: float) -> TransferHandle:
        """Send `chunk` to all others at rank 0, fill it elsewhere, within `seconds`.

        Returns an object whose `wait()` blocks until that has ended, or raises RuntimeError.
        """
        raise NotImplementedError("FILL 2: send a chunk, or receive it")

    def _disconnect(self) -> None:
        """Called once after an abort, when no call is running."""
        # FILL 3: then close what `_connect` opened.
        self._transfer.drain()

    def _to_sync_error(self, error: Exception) -> SyncError:
        if isinstance(error, TimeoutError):
            return TimedOutError(f"{self.name}: {error}")
        return super()._to_sync_error(error)

    def _send(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.send(buffer, manifest, deadline)

    def _receive(self, buffer: Buffer, manifest: WeightManifest, deadline: float) -> None:
        self._transfer.receive(buffer, manifest, deadline)
