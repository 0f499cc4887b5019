"""What each move does."""

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello
from tests.unit.rollcall_protocol.model.enabled_moves import EnabledMoves
from tests.unit.rollcall_protocol.model.group_tables import GroupTables
from tests.unit.rollcall_protocol.model.search_scopes import ModelFault
from tests.unit.rollcall_protocol.model.state import ENDED, LEFT, GroupState
from tests.unit.rollcall_protocol.model.transition import Move, Transition


class MoveApplier:
    """Makes the moves of one tables."""

    def __init__(self, tables: GroupTables, moves: EnabledMoves) -> None:
        self.tables, self._moves = tables, moves

    def apply(self, state: GroupState, move: Move) -> GroupState:
        """The state after `move`. Raises InvariantViolation."""
        transition = Transition(self.tables, state)
        kind, *about = move
        if isinstance(kind, ModelFault):
            transition.faults -= 1
            self._fault(transition, kind, about)
        elif kind == "late":
            transition.faults -= 1
            transition.step_coordinator(int(str(about[0])), "pass", about[1])
        else:
            self._do(transition, str(kind), about)
        if self.tables.scope.prompt_sender:
            self._hurry(transition)
        return transition.state()

    def _hurry(self, transition: Transition) -> None:
        """What the trainer's own sender does takes no time that matters."""
        while (move := next(self._moves.of_senders(transition), None)) is not None:
            self._do(transition, str(move[0]), list(move[1:]))

    def _do(self, transition: Transition, kind: str, about: list[object]) -> None:
        first = int(str(about[0])) if about else 0
        if kind in {"pass", "publish", "write roster", "push"} or kind.startswith("sender"):
            self._do_trainer(transition, kind, first, about)
        elif kind == "start":
            slot = transition.slots[first]
            member = MemberId(f"uid-{first}", f"b{slot.starts + 1}")
            process = self.tables.members.start(member)
            transition.slots[first] = slot._replace(process=process, starts=slot.starts + 1)
            transition.connect(first, len(transition.trainers) - 1)
        elif kind == "joined":
            transition.step_member(first, "joined", "")
        elif kind == "received":
            transition.step_member(first, "moved", "", False)
        elif kind == "applied":
            transition.step_member(first, "applied", about[1], "")
        elif kind == "fetched":
            transition.step_member(
                first, "fetched", about[1], self._no_donor(transition, first, about[1])
            )
        elif kind == "reconnect":
            transition.connect(first, len(transition.trainers) - 1)
        elif kind == "cut":
            _end(transition, first)
        else:
            self._do_stream(transition, kind, first, about)

    def _do_trainer(self, transition: Transition, kind: str, pod: int, about: list[object]) -> None:
        if kind == "pass":
            transition.step_coordinator(pod, "pass", about[1])
        elif kind == "publish":
            trainer = transition.trainers[pod]
            machine = self.tables.coordinators.get(trainer.machine)
            number = (machine.highest_number if trainer.last < 0 else trainer.last) + 1
            transition.versions -= 1
            transition.trainers[pod] = trainer._replace(last=number)
            transition.publish(pod, number)
        elif kind == "write roster":
            transition.named = (*transition.named, len(transition.trainers) - 1)
        elif kind == "push":
            epoch = int(str(about[1]))
            transition.named += (pod,) * (epoch - len(transition.named))
            transition.step_coordinator(pod, "push_roster", self.tables.roster(epoch, pod))
        elif kind == "sender replies":
            transition.receive_at_sender(pod, all_of_it=False)
        elif kind == "sender joined":
            transition.step_sender(pod, "joined", "")
        else:
            transition.step_sender(pod, "moved", "", False)

    def _do_stream(
        self, transition: Transition, kind: str, index: int, about: list[object]
    ) -> None:
        slot = transition.slots[index]
        stream = slot.stream
        if kind in {"read the rest", "rest ends"}:
            which = int(str(about[1]))
            remains = slot.remains[which]
            rest = slot.remains[:which] + slot.remains[which + 1 :]
            if kind == "rest ends":
                transition.slots[index] = slot._replace(remains=rest)
                if remains.known and not _registered_again(transition, index, remains.member):
                    transition.step_coordinator(
                        remains.pod, "lost", remains.member, "its stream ended"
                    )
                return
            message = self.tables.messages.values[remains.up[0]]
            again = _registered_again(transition, index, remains.member)
            if isinstance(message, Hello) and again and stream is not None:
                # The older stream took the newer one's place, whose end is no loss therefore.
                stream = stream._replace(registered=False, state=ENDED)
                slot = slot._replace(stream=stream)
            known = remains.known or isinstance(message, Hello)
            kept = remains._replace(up=remains.up[1:], known=known)
            left = (*slot.remains[:which], kept, *slot.remains[which + 1 :])
            transition.slots[index] = slot._replace(remains=left)
            _receive(transition, remains.pod, remains.member, message)
            return
        assert stream is not None
        assert slot.process is not None
        member = self.tables.members.id(slot.process)
        if kind == "report":
            message = self.tables.messages.values[stream.up[0]]
            registered = stream.registered or isinstance(message, Hello)
            stream = stream._replace(up=stream.up[1:], registered=registered)
            transition.slots[index] = slot._replace(stream=stream)
            _receive(transition, stream.pod, member, message)
        elif kind == "deliver":
            message = self.tables.messages.values[stream.down[0]]
            transition.slots[index] = slot._replace(stream=stream._replace(down=stream.down[1:]))
            transition.step_member(index, "receive", message, (stream.pod, stream.boot))
        else:  # the coordinator's side of the stream ends
            transition.slots[index] = slot._replace(stream=stream._replace(state=LEFT, up=()))
            if stream.registered:
                transition.step_coordinator(stream.pod, "lost", member, "its stream ended")

    def _no_donor(self, transition: Transition, index: int, which: object) -> str:
        slot = transition.slots[index]
        assert slot.process is not None
        version = self.tables.members.get(slot.process).fetches[int(str(which))]
        peers = [s.process for i, s in enumerate(transition.slots) if i != index]
        held = [self.tables.members.get(p).machine.held for p in peers if p is not None]
        machines = [self.tables.coordinators.get(t.machine) for t in transition.trainers if t.alive]
        offered = [machine.current for machine in machines]
        return "" if version in {*held, *offered} else "no donor holds it"

    def _fault(self, transition: Transition, kind: ModelFault, about: list[object]) -> None:
        first = int(str(about[0])) if about else 0
        if kind is ModelFault.CRASH:
            transition.leave(first)
            transition.slots[first] = transition.slots[first]._replace(process=None)
        elif kind is ModelFault.BREAK:
            _end(transition, first)
        elif kind is ModelFault.JOIN:
            transition.step_member(first, "joined", "broken")
        elif kind in {ModelFault.MOVE, ModelFault.CORRUPT}:
            transition.step_member(first, "moved", "broken", kind is ModelFault.CORRUPT)
        elif kind is ModelFault.APPLY:
            transition.step_member(first, "applied", about[1], "broken")
        elif kind is ModelFault.FETCH:
            transition.step_member(first, "fetched", about[1], "broken")
        elif kind is ModelFault.ASTRAY:
            transition.connect(first, int(str(about[1])))
        elif kind is ModelFault.STRAY_PUSH:
            transition.push_astray(first, epoch=int(str(about[1])), forged=bool(about[2]))
        elif kind is ModelFault.REPLACE:
            transition.trainers.append(self.tables.new_trainer(len(transition.trainers), 1, None))
        else:
            transition.restart_trainer(first)


def _end(transition: Transition, index: int) -> None:
    slot = transition.slots[index]
    assert slot.stream is not None
    transition.slots[index] = slot._replace(stream=slot.stream._replace(state=ENDED, broken=True))


def _registered_again(transition: Transition, index: int, member: MemberId) -> bool:
    """A newer stream of the same process took the older one's place."""
    slot = transition.slots[index]
    return (
        slot.process is not None
        and slot.stream is not None
        and slot.stream.registered
        and transition.tables.members.id(slot.process) == member
    )


def _receive(transition: Transition, pod: int, member: MemberId, message: object) -> None:
    if isinstance(message, Hello):
        transition.step_coordinator(pod, "hello", message)
    else:
        transition.step_coordinator(pod, "receive", member, message)
