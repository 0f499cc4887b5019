"""The interface that every weight-sync transport implements.

One engine lives in each process, across memberships. Each forming of the group is a session, which
is cheap to make, used until something changes, and then aborted; a session is never repaired. Calls
block, so an asyncio program runs them in worker threads; `abort` is the one call that never blocks.
"""

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.errors import JoinFailedError
from rollcall_runtime.sync.memory.buffers import Buffer

HOST = frozenset({"cpu"})
_POSITIVE = ("operation_bytes", "in_flight", "threads", "max_abandoned", "profile_bytes")


class EngineKind(StrEnum):
    """Group engines build a communicator for each session; peer engines rewire neighbours."""

    GROUP = "group"
    PEER = "peer"


class Role(StrEnum):
    """The sender holds new weights first (the trainer); receivers stage them (the rollouts)."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Bounds of the transport. The size of a bucket is not here: it travels in each manifest.

    Buckets move in operations of `operation_bytes`, `in_flight` of them at a time over `threads`
    parallel streams. An engine's own settings derive from this. `operation_timeout` (seconds)
    bounds one operation, so it is how long a peer may be late or silent, and how long an aborted
    session can keep its buffer (and delay the end of the process); `in_flight` operations must get
    through the slowest link in that time. A session of a slow group has `SyncEngine.stretch` times
    that. `max_abandoned` bounds how many sessions may be stuck.
    `interface` names the network interface to bind to instead of the pod's address. `profile` is
    the folder for traces, none if empty (the job's weightSync.profile sets it); `profile_bytes`
    bounds each file.
    """

    operation_bytes: int = 32 << 20
    operation_timeout: float = 5.0
    in_flight: int = 4
    threads: int = 4
    max_abandoned: int = 16
    interface: str = ""
    profile: str = ""
    profile_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.operation_timeout <= 0:
            raise ValueError("operation_timeout must be positive")
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class SyncSession(ABC):
    """One member's part in one session. Safe to abort from any thread, at any moment.

    `join`, `publish` and `receive` are called one at a time. They raise a SyncError: AbortedError
    within milliseconds of `abort`, TimedOutError after `timeout` seconds. The buffer is pinned
    until the transport has let go of it, which may be later than the call's end.
    """

    def __init__(self, *, session: SessionId, seats: Sequence[Seat], rank: int) -> None:
        if not 0 <= rank < len(seats):
            raise ValueError(f"rank {rank} is not one of {len(seats)} seats")
        self.session = session
        self.seats = tuple(seats)
        self.rank = rank

    @property
    def buffer_devices(self) -> frozenset[str]:
        """Where buffers may be that are sent and received: the engine's `buffer_devices`."""
        return HOST

    @abstractmethod
    def join(self, *, timeout: float) -> None:
        """Meet the other seats.

        Raises JoinFailedError, which names an empty seat if there is one, and ExhaustedError while
        `SyncSettings.max_abandoned` aborted sessions of this process are still stuck.
        """

    def give_up_join(self) -> bool:
        """After a failed `join`: whether no other seat's join has ended well, nor will.

        False where that cannot be known, as at every seat but the sender's.
        """
        return False

    @abstractmethod
    def publish(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Send the buffer to every other seat. Returning is no proof of delivery."""

    @abstractmethod
    def receive(self, buffer: Buffer, manifest: WeightManifest, *, timeout: float) -> None:
        """Fill `buffer` (manifest.total_bytes long) and check each bucket's digest.

        Raises DigestMismatchError; the buffer's content is then undefined.
        """

    def receive_buckets(
        self, buffer: Buffer, manifest: WeightManifest, *, only: Sequence[int], timeout: float
    ) -> None:
        """Receive these buckets (numbers, ascending) of what `manifest` describes, and no others.

        `buffer` holds them one after the other, as `manifest.only(only)` says. For engines that are
        `selective`. Seats with the same "shard" in their descriptors take the same buckets.
        """
        raise NotImplementedError(f"{type(self).__name__} sends all buckets to every receiver")

    @abstractmethod
    def abort(self) -> None:
        """Abort the session; returns at once, may be repeated.

        What is stuck in the transport keeps its memory until it ends, which
        `SyncSettings.operation_timeout` bounds; the engine counts such sessions as abandoned.
        """


class SyncEngine(ABC):
    """A transport, one object a process; it outlives sessions."""

    name: ClassVar[str]
    kind: ClassVar[EngineKind]
    devices: ClassVar[frozenset[str]]  # torch device types whose workers it serves
    library: ClassVar[str] = "torch"  # the module whose distribution's version is shown
    buffer_devices: ClassVar[frozenset[str]] = HOST  # torch device types: where buffers may be
    settings_type: ClassVar[type[SyncSettings]] = SyncSettings  # read from weightSync.config
    selective: ClassVar[bool] = False  # whether a receiver can leave buckets out
    needs_digests: ClassVar[bool] = False  # whether weights pass through others' hands
    stretch: float = 1.0
    """How many times `SyncSettings.operation_timeout` operations may take in sessions that are
    opened from now on: more than 1 on busy machines."""

    @classmethod  # noqa: B027 - not every engine needs one
    def require_library(cls) -> None:
        """Called before the engine is made. Raises ImportError that says what is missing here.

        A module that imports its library no earlier lets the engine be listed without it.
        """

    @abstractmethod
    def open(self, *, member: MemberId, address: str, role: Role, settings: SyncSettings) -> bytes:
        """Bind to `address` (an IP of this pod, never all interfaces); called once.

        Returns the descriptor that other members need to reach this one: a JSON object, in which
        "rendezvous" is the sender's (see `rendezvous.address_descriptor`).
        """

    @abstractmethod
    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> SyncSession:
        """A session to join; does no I/O. Seat 0 is the sender's.

        `group` must be unique to job and sync group.
        """

    @property
    @abstractmethod
    def abandoned(self) -> int:
        """Sessions that were aborted and still hold a thread or a buffer."""

    @abstractmethod
    def close(self) -> None:
        """Abort all sessions and free what is not stuck; waits at most a second."""


def encode_descriptor(descriptor: bytes) -> str:
    """A descriptor as `Hello` and `Seat` carry it."""
    return base64.b64encode(descriptor).decode()


def decode_descriptor(seat: Seat) -> dict[str, Any]:
    """The descriptor of a seat, a JSON object; JoinFailedError when it is something else."""
    try:
        found = json.loads(base64.b64decode(seat.descriptor, validate=True))
    except ValueError as error:  # of base64, of UTF-8, or of JSON
        raise JoinFailedError(f"bad descriptor: {error}", peer=seat.member) from error
    if not isinstance(found, dict):
        raise JoinFailedError("bad descriptor: not an object", peer=seat.member)
    return found
