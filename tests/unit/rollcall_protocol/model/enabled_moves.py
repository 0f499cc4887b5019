"""The moves of a state: which may come next."""

from collections.abc import Iterator

from rollcall_protocol.wire.ids import MemberId
from tests.unit.rollcall_protocol.model.group_tables import GroupTables
from tests.unit.rollcall_protocol.model.search_scopes import ENGINE_FAULTS, ModelFault
from tests.unit.rollcall_protocol.model.state import (
    ENDED,
    OPEN,
    GroupState,
    MemberProcess,
    MemberStream,
    RolloutSlot,
)
from tests.unit.rollcall_protocol.model.transition import Move, Transition

SETTLE = "settle"
_LOSE_MESSAGES = frozenset(
    {ModelFault.BREAK, ModelFault.ASTRAY, ModelFault.RESTART, ModelFault.REPLACE}
)


class EnabledMoves:
    """What may happen in the states of one tables."""

    def __init__(self, tables: GroupTables) -> None:
        self.tables = tables

    # --- which -----------------------------------------------------------------------------------

    def system(self, state: GroupState) -> Iterator[Move]:
        """What happens by itself: deliveries, ends of streams, ends of slow work."""
        yield from self.of_senders(state)
        for index, slot in enumerate(state.slots):
            for which, remains in enumerate(slot.remains):
                if remains.up:
                    yield ("read the rest", index, which)
                yield ("rest ends", index, which)
            if slot.stream is not None:
                yield from self._of_stream(state, index, slot.stream)
            if slot.process is not None:
                yield from self._of_work(state, index, self.tables.members.get(slot.process))

    def first(self, state: GroupState) -> Move | None:
        """A move that may be made before all others without losing a behaviour, if there is one.

        The delivery of a message to a member, and the end of its slow work, commute with all moves
        of others. A crash or the closing of the stream that comes first only loses the member's
        reply, which equals a reply that is never read. Not so where the message itself may still be
        lost, or the work fail.
        """
        kinds, newest = self.tables.scope.kinds, len(state.trainers) - 1
        if state.faults and kinds & _LOSE_MESSAGES:
            return None
        for index, slot in enumerate(state.slots):
            stream = slot.stream
            if slot.process is None or stream is None or stream.broken or stream.pod != newest:
                continue
            process = self.tables.members.get(slot.process)
            work = next(self._of_work(state, index, process), None)
            if work is not None and not (state.faults and kinds & ENGINE_FAULTS):
                if work[0] in {"joined", "received"}:
                    return work
            elif stream.down and not _works(process):
                return ("deliver", index)
        return None

    def environment(self, state: GroupState) -> Iterator[Move]:
        """What operator, trainer and Kubernetes may do now or later."""
        for index, slot in enumerate(state.slots):
            if slot.process is None:
                yield ("start", index)
        yield from self._of_operator(state)
        for pod, trainer in enumerate(state.trainers):
            if not trainer.alive:
                continue
            if SETTLE in self.tables.coordinators.deadlines(trainer.machine):
                yield ("pass", pod, SETTLE)
            machine = self.tables.coordinators.get(trainer.machine)
            if (
                state.versions
                and machine.lineage is not None
                and machine.publisher.publication is None
            ):
                yield ("publish", pod)

    def _of_operator(self, state: GroupState) -> Iterator[Move]:
        written, newest = len(state.named), len(state.trainers) - 1
        last = len(self.tables.scope.rosters)
        if ModelFault.REPLACE not in self.tables.scope.kinds:
            # Only its coordinator knows a roster: it need not be written before it is pushed.
            for epoch in range(self._epoch(state, newest) + 1, last + 1):
                yield ("push", newest, epoch)
            return
        if written < last or state.named[-1] != newest:
            yield ("write roster",)
        if written and self._epoch(state, state.named[-1]) < written:
            yield ("push", state.named[-1], written)

    def deadlines(self, state: GroupState) -> Iterator[Move]:
        """Deadlines that pass when a member stays silent."""
        for pod, trainer in enumerate(state.trainers):
            if trainer.alive:
                for name in self.tables.coordinators.deadlines(trainer.machine):
                    if name != SETTLE:
                        yield ("pass", pod, name)

    def faults(self, state: GroupState) -> Iterator[Move]:
        """What goes wrong; `apply` charges for it."""
        kinds = self.tables.scope.kinds
        for index, slot in enumerate(state.slots):
            if slot.process is None:
                continue
            process = self.tables.members.get(slot.process)
            for kind, move in _member_faults(index, slot, process):
                if kind in kinds:
                    yield (kind, *move)
        yield from self._trainer_faults(state)

    def _trainer_faults(self, state: GroupState) -> Iterator[Move]:
        kinds, newest = self.tables.scope.kinds, len(state.trainers) - 1
        if ModelFault.RESTART in kinds:
            yield (ModelFault.RESTART, newest)
        if ModelFault.REPLACE in kinds:
            yield (ModelFault.REPLACE,)
        for pod, trainer in enumerate(state.trainers):
            if pod < newest and trainer.alive and ModelFault.ASTRAY in kinds:
                for index, slot in enumerate(state.slots):
                    if slot.process is not None and (not slot.stream or slot.stream.pod != pod):
                        yield (ModelFault.ASTRAY, index, pod)
            if trainer.alive and ModelFault.STRAY_PUSH in kinds:
                for epoch in range(1, len(state.named) + 1):
                    yield (ModelFault.STRAY_PUSH, pod, epoch, False)
                    if epoch <= self._epoch(state, pod):  # else it could not be recognised as wrong
                        yield (ModelFault.STRAY_PUSH, pod, epoch, True)

    def of_senders(self, state: GroupState | Transition) -> Iterator[Move]:
        """What the trainer's own senders do next."""
        for pod, trainer in enumerate(state.trainers):
            if not trainer.alive:
                continue
            if trainer.replies:
                yield ("sender replies", pod)
            sender = self.tables.members.get(trainer.sender)
            if sender.joining is not None and self._all_joining(state, sender):
                yield ("sender joined", pod)
            if sender.transfer is not None and self._all_receiving(state, sender):
                yield ("sender sent", pod)

    def _of_stream(self, state: GroupState, index: int, stream: MemberStream) -> Iterator[Move]:
        if stream.up:
            yield ("report", index)
        if stream.down:
            yield ("deliver", index)
        if stream.state == ENDED:
            yield ("lost", index)
        if stream.state != OPEN:
            if stream.broken or not stream.down:
                yield ("reconnect", index)
        elif stream.pod < len(state.trainers) - 1:
            yield ("cut", index)  # the pod was replaced: its node goes away some time

    def _of_work(self, state: GroupState, index: int, process: MemberProcess) -> Iterator[Move]:
        if process.joining is not None and self._all_joining(state, process):
            yield ("joined", index)
        if process.transfer is not None and self._is_sent(state, process):
            yield ("received", index)
        for which in range(len(process.applies)):
            yield ("applied", index, which)
        for which in range(len(process.fetches)):
            yield ("fetched", index, which)

    def _epoch(self, state: GroupState, pod: int) -> int:
        """The epoch that a coordinator follows."""
        roster = self.tables.coordinators.get(state.trainers[pod].machine).members.roster
        return roster.epoch if roster is not None else 0

    def _find(self, state: GroupState | Transition, member: MemberId) -> MemberProcess | None:
        processes = self.tables.members
        for slot in state.slots:
            if slot.process is not None and processes.id(slot.process) == member:
                return processes.get(slot.process)
        for trainer in state.trainers:
            if trainer.alive and processes.id(trainer.sender) == member:
                return processes.get(trainer.sender)
        return None

    def _all_joining(self, state: GroupState | Transition, process: MemberProcess) -> bool:
        """A collective join ends when all seats are in it."""
        session = process.joining
        for seat in process.machine._seats:
            there = self._find(state, seat.member)
            if there is None or session not in {there.joining, there.joined}:
                return False
        return True

    def _all_receiving(self, state: GroupState | Transition, sender: MemberProcess) -> bool:
        work = sender.transfer
        for seat in sender.machine._seats[sender.machine._senders :]:
            there = self._find(state, seat.member)
            if there is None or work not in {there.transfer, there.staged}:
                return False
        return True

    def _is_sent(self, state: GroupState | Transition, process: MemberProcess) -> bool:
        sender = self._find(state, process.machine._seats[0].member)
        return sender is not None and process.transfer in {sender.transfer, sender.sent}


def _member_faults(
    index: int, slot: RolloutSlot, process: MemberProcess
) -> Iterator[tuple[ModelFault, Move]]:
    yield ModelFault.CRASH, (index,)
    if slot.stream is not None and slot.stream.state == OPEN:
        yield ModelFault.BREAK, (index,)
    if process.joining is not None:
        yield ModelFault.JOIN, (index,)
    if process.transfer is not None:
        yield ModelFault.MOVE, (index,)
        yield ModelFault.CORRUPT, (index,)
    for which in range(len(process.applies)):
        yield ModelFault.APPLY, (index, which)
    for which in range(len(process.fetches)):
        yield ModelFault.FETCH, (index, which)


def _works(process: MemberProcess) -> bool:
    return bool(process.joining or process.transfer or process.applies or process.fetches)
