"""How a session's communicator is made: from nothing, or from the one that the group had before.

Every member offers what it still has of the previous communicator, and the sender decides for all.
A group that only lost members shrinks it, one that only gained some grows it; whenever that is not
possible, or fails at any rank, all abort what they have and build one from a new unique id.
"""

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from rollcall_plugins.transports.nccl.device_slots import CudaDeviceSlots, SlotRing
from rollcall_plugins.transports.nccl.nccl_library import Handle, NcclLibrary
from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.engines.common.threaded_engine import seconds_left
from rollcall_runtime.sync.errors import SyncError, TimedOutError
from rollcall_runtime.sync.memory.buffers import BufferHold
from rollcall_runtime.sync.rendezvous import SessionRendezvous

Sleep = Callable[[float], None]
_POLL_SECONDS = 0.0005
_FAILED, _BUILT = "failed", "built"


class BuildMethod(StrEnum):
    """How a communicator is made."""

    NEW = "new"
    SHRINK = "shrink"
    GROW = "grow"


@dataclass(slots=True)
class Communicator:
    """A communicator and the device memory of its operations.

    `token` is the same at all its ranks and at no other communicator. Equal counts of `begun` and
    `ended` operations mean that nothing is in flight. `holds` keep buffers in device memory, into
    which what is in flight may still write, until the communicator has been aborted.
    """

    handle: Handle
    ring: SlotRing
    token: str
    rank: int
    size: int
    begun: int = 0
    ended: int = 0
    holds: list[BufferHold] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ParentOffer:
    """What a member has of the previous communicator; `operations` is -1 if some are in flight."""

    token: str = ""
    rank: int = 0
    size: int = 0
    operations: int = 0

    @classmethod
    def of(cls, parent: Communicator | None) -> "ParentOffer":
        """The offer of a member that has `parent`."""
        if parent is None:
            return cls()
        operations = parent.ended if parent.begun == parent.ended else -1
        return cls(parent.token, parent.rank, parent.size, operations)

    @classmethod
    def parse(cls, text: str) -> "ParentOffer":
        """Read what `text` wrote."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The offer as JSON, for the rendezvous."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class CommunicatorPlan:
    """What all ranks are to do, as the sender decided.

    `unique_id` (base64) is for all ranks, or for the new ones of a communicator that grows;
    `excluded` are ranks of the parent, `kept` is how many ranks of the parent stay.
    """

    method: BuildMethod
    token: str
    unique_id: str = ""
    excluded: list[int] = field(default_factory=list)
    kept: int = 0

    @classmethod
    def parse(cls, text: str) -> "CommunicatorPlan":
        """Read what `text` wrote."""
        plan = json.loads(text)
        return cls(**(plan | {"method": BuildMethod(plan["method"])}))

    def text(self) -> str:
        """The plan as JSON, for the rendezvous."""
        return json.dumps(asdict(self))


def choose_method(
    offers: Sequence[ParentOffer], *, can_shrink: bool, can_grow: bool
) -> tuple[BuildMethod, list[int]]:
    """How to make a communicator of these members, in rank order, and which ranks to exclude."""
    parent = offers[0]
    if not parent.token or parent.rank != 0:
        return BuildMethod.NEW, []
    kept = [offer for offer in offers if offer.token == parent.token]
    ranks = [offer.rank for offer in kept]
    if ranks != sorted(set(ranks)):
        return BuildMethod.NEW, []
    if len(kept) == len(offers) and len(kept) < parent.size:
        excluded = sorted(set(range(parent.size)) - set(ranks))
        return (BuildMethod.SHRINK, excluded) if can_shrink else (BuildMethod.NEW, [])
    at_rest = {offer.operations for offer in kept} == {parent.operations} != {-1}
    complete = kept == list(offers[: len(kept)]) and ranks == list(range(parent.size))
    if can_grow and at_rest and complete and len(offers) > parent.size:
        return BuildMethod.GROW, []
    return BuildMethod.NEW, []


class CommunicatorBuilder:
    """Makes and aborts communicators on one device. Methods may raise LibraryError."""

    def __init__(self, nccl: NcclLibrary, device: CudaDeviceSlots) -> None:
        self._nccl = nccl
        self._device = device

    def build(
        self,
        rendezvous: SessionRendezvous,
        *,
        parent: Communicator | None,
        rank: int,
        size: int,
        deadline: float,
        sleep: Sleep,
    ) -> Communicator:
        """Agree with the other ranks and make the communicator; `parent` is used up in any case."""
        try:
            plan = self._agree(rendezvous, parent, rank=rank)
            made = None
            if plan.method is not BuildMethod.NEW:
                left = seconds_left(deadline, doing="building the communicator")
                made = self._derive(
                    rendezvous,
                    plan,
                    parent,
                    rank=rank,
                    size=size,
                    deadline=deadline - left / 2,
                    sleep=sleep,
                )
                if made is None:
                    text = rendezvous.decide(
                        "new plan", rank=rank, offer="", decide=lambda _: self._new_plan().text()
                    )
                    plan = CommunicatorPlan.parse(text)
        finally:
            if parent is not None:
                self.abort(parent)
        return made or self._make(plan, rank=rank, size=size, deadline=deadline, sleep=sleep)

    def abort(self, communicator: Communicator) -> None:
        """Abort what is in flight and free the communicator; may take a while."""
        self._device.use_device()
        try:
            self._nccl.abort(communicator.handle)
        finally:
            communicator.ring.wait()
            while communicator.holds:
                communicator.holds.pop().release()
            self._device.return_ring(communicator.ring)

    def broadcast(self, communicator: Communicator, pointer: int, nbytes: int, stream: int) -> None:
        """Enqueue a broadcast of device memory; `wait_until_ready` before the next."""
        self._nccl.broadcast(communicator.handle, pointer, nbytes, stream)

    def raise_if_failed(self, communicator: Communicator) -> None:
        """Raise LibraryError if NCCL reports a failure, such as a peer that exited."""
        self._nccl.ready(communicator.handle)

    def wait_until_ready(self, handle: Handle, *, deadline: float, sleep: Sleep) -> None:
        """Wait until what was begun has succeeded; TimedOutError."""
        while not self._nccl.ready(handle):
            seconds_left(deadline, doing="waiting for NCCL to finish an operation")
            sleep(_POLL_SECONDS)

    def _agree(
        self, rendezvous: SessionRendezvous, parent: Communicator | None, *, rank: int
    ) -> CommunicatorPlan:
        def plan(offers: list[str]) -> str:
            method, excluded = choose_method(
                [ParentOffer.parse(text) for text in offers],
                can_shrink=self._nccl.can_shrink,
                can_grow=self._nccl.can_grow,
            )
            if parent is None or method is BuildMethod.NEW:
                return self._new_plan().text()
            unique_id = self._nccl.grow_id(parent.handle) if method is BuildMethod.GROW else b""
            return CommunicatorPlan(
                method, secrets.token_hex(8), _base64(unique_id), excluded, parent.size
            ).text()

        offer = ParentOffer.of(parent).text()
        return CommunicatorPlan.parse(
            rendezvous.decide("plan", rank=rank, offer=offer, decide=plan)
        )

    def _new_plan(self) -> CommunicatorPlan:
        unique_id = _base64(self._nccl.unique_id())
        return CommunicatorPlan(BuildMethod.NEW, secrets.token_hex(8), unique_id)

    def _derive(
        self,
        rendezvous: SessionRendezvous,
        plan: CommunicatorPlan,
        parent: Communicator | None,
        *,
        rank: int,
        size: int,
        deadline: float,
        sleep: Sleep,
    ) -> Communicator | None:
        """Shrink or grow the parent; None, at all ranks, if that failed at one."""
        made: Communicator | None = None
        with suppress(LibraryError, TimedOutError):  # reported below; then all build a new one
            made = self._make(
                plan, rank=rank, size=size, deadline=deadline, sleep=sleep, parent=parent
            )
        try:
            result = rendezvous.decide(
                "result",
                rank=rank,
                offer=_BUILT if made else _FAILED,
                decide=lambda results: _FAILED if _FAILED in results else _BUILT,
            )
        except SyncError:
            if made is not None:
                self.abort(made)
            raise
        if made is not None and result == _FAILED:
            self.abort(made)
            made = None
        return made

    def _make(
        self,
        plan: CommunicatorPlan,
        *,
        rank: int,
        size: int,
        deadline: float,
        sleep: Sleep,
        parent: Communicator | None = None,
    ) -> Communicator:
        ring = self._device.take_ring()
        handle: Handle | None = None
        try:
            handle = self._begin(plan, rank=rank, size=size, parent=parent)
            self.wait_until_ready(handle, deadline=deadline, sleep=sleep)
        except (SyncError, LibraryError):
            if handle is not None:
                if handle.parent is not None:  # the child has no pointer before its parent is done
                    self._nccl.abort(handle.parent)
                self._nccl.abort(handle)
            self._device.return_ring(ring)
            raise
        return Communicator(handle, ring, plan.token, rank, size)

    def _begin(
        self, plan: CommunicatorPlan, *, rank: int, size: int, parent: Communicator | None
    ) -> Handle:
        unique_id = b64decode(plan.unique_id)
        if plan.method is BuildMethod.NEW:
            return self._nccl.init(unique_id, size=size, rank=rank)
        if parent is not None and plan.method is BuildMethod.SHRINK:
            return self._nccl.shrink(parent.handle, excluded=plan.excluded)
        if parent is None or rank >= plan.kept:
            return self._nccl.grow(None, unique_id, size=size, rank=rank)
        parents_id = unique_id if rank == 0 else None
        return self._nccl.grow(parent.handle, parents_id, size=size, rank=-1)


def _base64(raw: bytes) -> str:
    return b64encode(raw).decode()
