"""What each move does."""

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello
from tests.unit.rollcall_protocol.model.moves import Moves
from tests.unit.rollcall_protocol.model.scope import Fault
from tests.unit.rollcall_protocol.model.state import ENDED, LEFT, State
from tests.unit.rollcall_protocol.model.world import Draft, Move, World


class Steps:
    """Makes the moves of one world."""

    def __init__(self, world: World, moves: Moves) -> None:
        self.world, self._moves = world, moves

    def apply(self, state: State, move: Move) -> State:
        """The state after `move`. Raises Violation."""
        draft = Draft(self.world, state)
        kind, *about = move
        if isinstance(kind, Fault):
            draft.faults -= 1
            self._fault(draft, kind, about)
        elif kind == "late":
            draft.faults -= 1
            draft.tell(int(str(about[0])), "pass", about[1])
        else:
            self._do(draft, str(kind), about)
        if self.world.scope.prompt_sender:
            self._hurry(draft)
        return draft.state()

    def _hurry(self, draft: Draft) -> None:
        """What the trainer's own sender does takes no time that matters."""
        while (move := next(self._moves.of_senders(draft), None)) is not None:
            self._do(draft, str(move[0]), list(move[1:]))

    def _do(self, draft: Draft, kind: str, about: list[object]) -> None:
        first = int(str(about[0])) if about else 0
        if kind in {"pass", "publish", "write roster", "push"} or kind.startswith("sender"):
            self._do_trainer(draft, kind, first, about)
        elif kind == "start":
            slot = draft.slots[first]
            member = MemberId(f"uid-{first}", f"b{slot.lives + 1}")
            process = self.world.processes.start(member)
            draft.slots[first] = slot._replace(process=process, lives=slot.lives + 1)
            draft.connect(first, len(draft.trainers) - 1)
        elif kind == "joined":
            draft.step_member(first, "joined", "")
        elif kind == "received":
            draft.step_member(first, "moved", "", False)
        elif kind == "applied":
            draft.step_member(first, "applied", about[1], "")
        elif kind == "fetched":
            draft.step_member(first, "fetched", about[1], self._no_donor(draft, first, about[1]))
        elif kind == "reconnect":
            draft.connect(first, len(draft.trainers) - 1)
        elif kind == "cut":
            _end(draft, first)
        else:
            self._do_stream(draft, kind, first, about)

    def _do_trainer(self, draft: Draft, kind: str, pod: int, about: list[object]) -> None:
        if kind == "pass":
            draft.tell(pod, "pass", about[1])
        elif kind == "publish":
            trainer = draft.trainers[pod]
            machine = self.world.trainers.get(trainer.machine)
            number = (machine.highest_number if trainer.last < 0 else trainer.last) + 1
            draft.versions -= 1
            draft.trainers[pod] = trainer._replace(last=number)
            draft.publish(pod, number)
        elif kind == "write roster":
            draft.named = (*draft.named, len(draft.trainers) - 1)
        elif kind == "push":
            epoch = int(str(about[1]))
            draft.named += (pod,) * (epoch - len(draft.named))
            draft.tell(pod, "push_roster", self.world.roster(epoch, pod))
        elif kind == "sender says":
            draft.hear_sender(pod, all_of_it=False)
        elif kind == "sender joined":
            draft.step_sender(pod, "joined", "")
        else:
            draft.step_sender(pod, "moved", "", False)

    def _do_stream(self, draft: Draft, kind: str, index: int, about: list[object]) -> None:
        slot = draft.slots[index]
        stream = slot.stream
        if kind in {"read the rest", "rest ends"}:
            which = int(str(about[1]))
            remains = slot.remains[which]
            rest = slot.remains[:which] + slot.remains[which + 1 :]
            if kind == "rest ends":
                draft.slots[index] = slot._replace(remains=rest)
                if remains.known and not _registered_again(draft, index, remains.member):
                    draft.tell(remains.pod, "lost", remains.member, "its stream ended")
                return
            message = self.world.messages.values[remains.up[0]]
            again = _registered_again(draft, index, remains.member)
            if isinstance(message, Hello) and again and stream is not None:
                # The older stream took the newer one's place, whose end is no loss therefore.
                stream = stream._replace(registered=False, state=ENDED)
                slot = slot._replace(stream=stream)
            known = remains.known or isinstance(message, Hello)
            kept = remains._replace(up=remains.up[1:], known=known)
            left = (*slot.remains[:which], kept, *slot.remains[which + 1 :])
            draft.slots[index] = slot._replace(remains=left)
            _receive(draft, remains.pod, remains.member, message)
            return
        assert stream is not None
        assert slot.process is not None
        member = self.world.processes.id(slot.process)
        if kind == "report":
            message = self.world.messages.values[stream.up[0]]
            registered = stream.registered or isinstance(message, Hello)
            stream = stream._replace(up=stream.up[1:], registered=registered)
            draft.slots[index] = slot._replace(stream=stream)
            _receive(draft, stream.pod, member, message)
        elif kind == "deliver":
            told = self.world.messages.values[stream.down[0]]
            draft.slots[index] = slot._replace(stream=stream._replace(down=stream.down[1:]))
            draft.step_member(index, "hear", told, (stream.pod, stream.boot))
        else:  # the coordinator's side of the stream ends
            draft.slots[index] = slot._replace(stream=stream._replace(state=LEFT, up=()))
            if stream.registered:
                draft.tell(stream.pod, "lost", member, "its stream ended")

    def _no_donor(self, draft: Draft, index: int, which: object) -> str:
        slot = draft.slots[index]
        assert slot.process is not None
        version = self.world.processes.get(slot.process).fetches[int(str(which))]
        peers = [s.process for i, s in enumerate(draft.slots) if i != index]
        held = [self.world.processes.get(p).machine.held for p in peers if p is not None]
        machines = [self.world.trainers.get(t.machine) for t in draft.trainers if t.alive]
        offered = [machine.current for machine in machines]
        return "" if version in {*held, *offered} else "no donor holds it"

    def _fault(self, draft: Draft, kind: Fault, about: list[object]) -> None:
        first = int(str(about[0])) if about else 0
        if kind is Fault.CRASH:
            draft.leave(first)
            draft.slots[first] = draft.slots[first]._replace(process=None)
        elif kind is Fault.BREAK:
            _end(draft, first)
        elif kind is Fault.JOIN:
            draft.step_member(first, "joined", "broken")
        elif kind in {Fault.MOVE, Fault.CORRUPT}:
            draft.step_member(first, "moved", "broken", kind is Fault.CORRUPT)
        elif kind is Fault.APPLY:
            draft.step_member(first, "applied", about[1], "broken")
        elif kind is Fault.FETCH:
            draft.step_member(first, "fetched", about[1], "broken")
        elif kind is Fault.ASTRAY:
            draft.connect(first, int(str(about[1])))
        elif kind is Fault.STRAY_PUSH:
            draft.push_astray(first, epoch=int(str(about[1])), forged=bool(about[2]))
        elif kind is Fault.REPLACE:
            draft.trainers.append(self.world.new_trainer(len(draft.trainers), 1, None))
        else:
            draft.restart_trainer(first)


def _end(draft: Draft, index: int) -> None:
    slot = draft.slots[index]
    assert slot.stream is not None
    draft.slots[index] = slot._replace(stream=slot.stream._replace(state=ENDED, broken=True))


def _registered_again(draft: Draft, index: int, member: MemberId) -> bool:
    """A newer stream of the same process took the older one's place."""
    slot = draft.slots[index]
    return (
        slot.process is not None and slot.stream is not None and slot.stream.registered
        and draft.world.processes.id(slot.process) == member
    )  # fmt: skip


def _receive(draft: Draft, pod: int, member: MemberId, message: object) -> None:
    if isinstance(message, Hello):
        draft.tell(pod, "hello", message)
    else:
        draft.tell(pod, "receive", member, message)
