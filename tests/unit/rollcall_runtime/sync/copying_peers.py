"""Members of one process that read each other's memory, for tests of peer engines."""

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Any

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.engine import EngineKind, Role, encode_descriptor
from rollcall_runtime.sync.engines.pull.engine import PullEngine, PullSettings
from rollcall_runtime.sync.engines.pull.peer_read_session import PullSession
from rollcall_runtime.sync.engines.pull.pending_reads import LibraryRead
from rollcall_runtime.sync.memory.buffers import HostBuffer

BUCKET = 1000
BUCKETS = 6
BYTES = BUCKET * BUCKETS - 10
_SESSIONS = itertools.count(1)


class CopyEngine(PullEngine):
    """Reads are copies. `allowed` of them end; the others once there are more, or `failing`.

    `seconds` is what each takes. `registrations` and `unregistrations` are addresses.
    `on_unregister` stands for a peer that writes just before.
    """

    name = "copy"
    kind = EngineKind.PEER
    devices = frozenset({"cpu"})
    settings_type = PullSettings

    def __init__(self) -> None:
        super().__init__()
        self.registrations: list[int] = []
        self.unregistrations: list[int] = []
        self.on_unregister: Callable[[], None] = lambda: None
        self.reached: list[str] = []
        self.kept: list[set[str]] = []
        self.ended = 0
        self.allowed = 1 << 30
        self.failing = False
        self.seconds = 0.0

    def _new_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> PullSession:
        return PullSession(group=group, session=session, seats=seats, rank=rank, engine=self)

    def _register(self, address: int, nbytes: int) -> object:
        self.registrations.append(address)
        return None

    def _unregister(self, handle: object, address: int) -> None:
        self.on_unregister()
        self.unregistrations.append(address)

    def _describe(self) -> dict[str, Any]:
        return {"agent": str(self.member.pod_uid if self.member else "")}

    def connect(self, source: dict[str, Any]) -> object:
        self.reached.append(source["agent"])
        return source["agent"]

    def read(self, peer: object, *, remote: int, local: int, nbytes: int) -> LibraryRead:
        return _Copy(self, remote, local, nbytes)

    def _keep_peers(self, members: AbstractSet[MemberId]) -> None:
        self.kept.append({member.pod_uid for member in members})


class _Copy(LibraryRead):
    def __init__(self, engine: CopyEngine, remote: int, local: int, nbytes: int) -> None:
        self._engine, self._copy = engine, (local, remote, nbytes)
        self._ends = time.monotonic() + engine.seconds

    def done(self) -> bool:
        engine = self._engine
        if engine.failing:
            raise RuntimeError("the source is dead")
        if engine.ended >= engine.allowed or time.monotonic() < self._ends:
            return False
        ctypes.memmove(*self._copy)
        engine.ended += 1
        return True


class Local:
    """A sender and receivers of any peer engine, each with a buffer that it keeps."""

    def __init__(
        self,
        make: type[PullEngine],
        receivers: int,
        settings: PullSettings,
        nbytes: int = BYTES,
        address: str = "127.0.0.1",
    ) -> None:
        self.engines: list[Any] = [make() for _ in range(receivers + 1)]
        self.buffers = [HostBuffer(nbytes) for _ in self.engines]
        self.seats = []
        for rank, engine in enumerate(self.engines):
            member = MemberId(f"pod-{rank}", f"boot-{id(self):x}")
            descriptor = engine.open(
                member=member,
                address=address,
                settings=settings,
                role=Role.RECEIVER if rank else Role.SENDER,
            )
            self.seats.append(Seat(member, address, encode_descriptor(descriptor)))

    def fill(self, seed: int, *, bucket: int = BUCKET) -> WeightManifest:
        """New bytes at the sender."""
        memory = self.buffers[0].memory
        memory[:] = bytes((seed + 7 * index) % 251 for index in range(251)) * (
            len(memory) // 251
        ) + bytes(len(memory) % 251)
        sums = [digest_of(memory[at : at + bucket]) for at in range(0, len(memory), bucket)]
        return WeightManifest((), len(memory), bucket, tuple(sums))

    def join(self, members: Sequence[int]) -> dict[int, PullSession]:
        """One session of these members, the sender first."""
        seats = tuple(self.seats[member] for member in members)
        number = SessionId(next(_SESSIONS), 1, 0)
        sessions = {
            member: self.engines[member].open_session(
                group="job/default", session=number, seats=seats, rank=rank
            )
            for rank, member in enumerate(members)
        }
        for future in [call(session.join, timeout=5.0) for session in sessions.values()]:
            future.result(5)
        return sessions

    def start(
        self, sessions: dict[int, PullSession], manifest: WeightManifest, *, timeout: float = 5.0
    ) -> dict[int, "Future[None]"]:
        """Begin to send, and to receive everywhere."""
        return {
            member: call(
                session.receive if session.rank else session.publish,
                self.buffers[member],
                manifest,
                timeout=timeout,
            )
            for member, session in sessions.items()
        }

    def transfer(self, sessions: dict[int, PullSession], manifest: WeightManifest) -> None:
        """Send, and compare what arrived."""
        for future in self.start(sessions, manifest).values():
            future.result(10)
        for member in sessions:
            assert self.buffers[member].memory == self.buffers[0].memory

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines:
            engine.allowed = 1 << 30
            engine.close()


def call(function: Any, *args: Any, **kwargs: Any) -> "Future[None]":
    """Run in a thread."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the test gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def abort(sessions: dict[int, PullSession]) -> None:
    """All members abort, and have let go of what they can."""
    for session in sessions.values():
        session.abort()
    for session in sessions.values():
        assert session.wait_until_freed(5)


def eventually(condition: Any, seconds: float = 5.0) -> bool:
    """Whether the condition comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
