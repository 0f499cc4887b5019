"""How the communicator of a session is made: anew, or from the one that the group had before.

Every member offers what it still has of the last communicator, and the sender decides for all. One
that only lost members is shrunk, one that only gained some is grown; whenever that is not possible,
or fails anywhere, all abort what they have and make a communicator from a new unique id.
"""

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.bindings.nccl_library import Handle, NcclLibrary
from rollcall_runtime.sync.engines.common.threaded_engine import time_left
from rollcall_runtime.sync.engines.nccl.device_slots import Device, Lane
from rollcall_runtime.sync.errors import SyncError, TimedOutError
from rollcall_runtime.sync.memory.buffers import Pin
from rollcall_runtime.sync.rendezvous import Rendezvous

Rest = Callable[[float], None]
_REST_SECONDS = 0.0005
_NO, _YES = "no", "yes"  # one no is less than any number of yes


class How(StrEnum):
    """How a communicator is made."""

    NEW = "new"
    SHRINK = "shrink"
    GROW = "grow"


@dataclass(slots=True)
class Communicator:
    """A communicator and the device memory of its operations.

    `token` is the same at all its ranks and at no other communicator. Two counts that are equal
    say that nothing is in flight. `pins` keep buffers in device memory, into which what is in
    flight may still write, until the communicator has been aborted.
    """

    handle: Handle
    lane: Lane
    token: str
    rank: int
    size: int
    begun: int = 0
    ended: int = 0
    pins: list[Pin] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a member has of an earlier communicator; `operations` is -1 if some are in flight."""

    token: str = ""
    rank: int = 0
    size: int = 0
    operations: int = 0

    @classmethod
    def of(cls, parent: Communicator | None) -> "Offer":
        """What to offer."""
        if parent is None:
            return cls()
        operations = parent.ended if parent.begun == parent.ended else -1
        return cls(parent.token, parent.rank, parent.size, operations)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all are to do. `unique_id` (base64) is for all, or for the newcomers of one that grows;
    `excluded` are ranks of the parent, `kept` is how many ranks of it stay.
    """

    how: How
    token: str
    unique_id: str = ""
    excluded: list[int] = field(default_factory=list)
    kept: int = 0

    @classmethod
    def read(cls, text: str) -> "Plan":
        """What the sender told."""
        told = json.loads(text)
        return cls(**(told | {"how": How(told["how"])}))

    def text(self) -> str:
        """What `read` reads."""
        return json.dumps(asdict(self))


def decide(offers: Sequence[Offer], *, can_shrink: bool, can_grow: bool) -> tuple[How, list[int]]:
    """How to make a communicator of these members, in rank order, and which ranks are excluded."""
    parent = offers[0]
    if not parent.token or parent.rank != 0:
        return How.NEW, []
    kept = [offer for offer in offers if offer.token == parent.token]
    ranks = [offer.rank for offer in kept]
    if ranks != sorted(set(ranks)):
        return How.NEW, []
    if len(kept) == len(offers) and len(kept) < parent.size:
        excluded = sorted(set(range(parent.size)) - set(ranks))
        return (How.SHRINK, excluded) if can_shrink else (How.NEW, [])
    at_rest = {offer.operations for offer in kept} == {parent.operations} != {-1}
    whole = kept == list(offers[: len(kept)]) and ranks == list(range(parent.size))
    if can_grow and at_rest and whole and len(offers) > parent.size:
        return How.GROW, []
    return How.NEW, []


class Builder:
    """Makes and ends communicators on one device. Methods may raise LibraryError."""

    def __init__(self, nccl: NcclLibrary, device: Device) -> None:
        self._nccl = nccl
        self._device = device

    def build(
        self,
        rendezvous: Rendezvous,
        *,
        parent: Communicator | None,
        rank: int,
        size: int,
        deadline: float,
        rest: Rest,
    ) -> Communicator:
        """Agree with the others and make the communicator; the parent is used up in any case."""
        room = _Room(rendezvous, rank, size)
        try:
            plan = self._agree(room, parent)
            made = None
            if plan.how is not How.NEW:
                half = deadline - time_left(deadline, doing="to build") / 2
                made = self._derive(room, plan, parent, deadline=half, rest=rest)
                if made is None:
                    plan = Plan.read(room.decided("again", lambda: self._anew().text()))
        finally:
            if parent is not None:
                self.end(parent)
        return made or self._make(plan, rank=rank, size=size, deadline=deadline, rest=rest)

    def end(self, communicator: Communicator) -> None:
        """Abort what is in flight and free; may take a while."""
        self._device.use()
        try:
            self._nccl.abort(communicator.handle)
        finally:
            communicator.lane.wait()
            while communicator.pins:
                communicator.pins.pop().release()
            self._device.put_back(communicator.lane)

    def broadcast(self, communicator: Communicator, pointer: int, nbytes: int, stream: int) -> None:
        """Put a broadcast in device memory into the stream; settle before the next."""
        self._nccl.broadcast(communicator.handle, pointer, nbytes, stream)

    def look(self, communicator: Communicator) -> None:
        """Raise LibraryError if something has gone wrong with a peer."""
        self._nccl.ready(communicator.handle)

    def settle(self, handle: Handle, *, deadline: float, rest: Rest) -> None:
        """Wait until what was begun has ended well."""
        while not self._nccl.ready(handle):
            time_left(deadline, doing="while NCCL is busy")
            rest(_REST_SECONDS)

    def _agree(self, room: "_Room", parent: Communicator | None) -> Plan:
        room.tell("offer", json.dumps(asdict(Offer.of(parent))))

        def plan() -> str:
            offers = [Offer(**json.loads(text)) for text in room.all_told("offer")]
            how, excluded = decide(
                offers, can_shrink=self._nccl.can_shrink, can_grow=self._nccl.can_grow
            )
            if parent is None or how is How.NEW:
                return self._anew().text()
            unique_id = self._nccl.grow_id(parent.handle) if how is How.GROW else b""
            token = secrets.token_hex(8)
            return Plan(how, token, _text(unique_id), excluded, parent.size).text()

        return Plan.read(room.decided("plan", plan))

    def _anew(self) -> Plan:
        return Plan(How.NEW, secrets.token_hex(8), _text(self._nccl.unique_id()))

    def _derive(
        self,
        room: "_Room",
        plan: Plan,
        parent: Communicator | None,
        *,
        deadline: float,
        rest: Rest,
    ) -> Communicator | None:
        """Shrink or grow; None, at all members, if it failed at one."""
        made: Communicator | None = None
        with suppress(LibraryError, TimedOutError):  # the others are told; all go another way
            made = self._make(
                plan, rank=room.rank, size=room.size, deadline=deadline, rest=rest, parent=parent
            )
        try:
            room.tell("built", _YES if made else _NO)
            verdict = room.decided("verdict", lambda: min(room.all_told("built")))
        except SyncError:
            if made is not None:
                self.end(made)
            raise
        if made is not None and verdict == _NO:
            self.end(made)
            made = None
        return made

    def _make(
        self,
        plan: Plan,
        *,
        rank: int,
        size: int,
        deadline: float,
        rest: Rest,
        parent: Communicator | None = None,
    ) -> Communicator:
        lane = self._device.lane()
        handle: Handle | None = None
        try:
            handle = self._begin(plan, rank=rank, size=size, parent=parent)
            self.settle(handle, deadline=deadline, rest=rest)
        except (SyncError, LibraryError):
            if handle is not None:
                if handle.parent is not None:  # the child has no pointer before its parent is done
                    self._nccl.abort(handle.parent)
                self._nccl.abort(handle)
            self._device.put_back(lane)
            raise
        return Communicator(handle, lane, plan.token, rank, size)

    def _begin(self, plan: Plan, *, rank: int, size: int, parent: Communicator | None) -> Handle:
        unique_id = b64decode(plan.unique_id)
        if plan.how is How.NEW:
            return self._nccl.init(unique_id, size=size, rank=rank)
        if parent is not None and plan.how is How.SHRINK:
            return self._nccl.shrink(parent.handle, excluded=plan.excluded)
        if parent is None or rank >= plan.kept:
            return self._nccl.grow(None, unique_id, size=size, rank=rank)
        minted = unique_id if rank == 0 else None
        return self._nccl.grow(parent.handle, minted, size=size, rank=-1)


class _Room:
    """What members tell each other in their session's rendezvous; the sender decides."""

    def __init__(self, rendezvous: Rendezvous, rank: int, size: int) -> None:
        self._rendezvous = rendezvous
        self.rank, self.size = rank, size

    def tell(self, what: str, text: str) -> None:
        self._rendezvous.put(f"{what}/{self.rank}", text.encode())

    def all_told(self, what: str) -> list[str]:
        told = self._rendezvous.get_all([f"{what}/{rank}" for rank in range(self.size)])
        return [text.decode() for text in told]

    def decided(self, what: str, decide: Callable[[], str]) -> str:
        if self.rank == 0:
            self._rendezvous.put(what, decide().encode())
        return self._rendezvous.get(what).decode()


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
