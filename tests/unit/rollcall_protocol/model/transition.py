"""A state that one move changes: streams, processes and what the machines send each other."""

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    CoordinatorSuperseded,
    SendMessage,
    SessionFormed,
)
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    Commit,
    Hello,
    SessionReady,
)
from tests.unit.rollcall_protocol.model.coordinator_steps import make_roster
from tests.unit.rollcall_protocol.model.group_tables import GroupTables
from tests.unit.rollcall_protocol.model.state import (
    ENDED,
    LEFT,
    OPEN,
    AbandonedStream,
    GroupState,
    MemberStream,
    require,
)

Move = tuple[object, ...]


class Transition:
    """A state that is being changed by one move."""

    def __init__(self, tables: GroupTables, state: GroupState) -> None:
        self.tables = tables
        self.trainers, self.slots = list(state.trainers), list(state.slots)
        self.named, self.faults, self.versions = state.named, state.faults, state.versions

    def state(self) -> GroupState:
        """The state that it became."""
        return GroupState(
            tuple(self.trainers), tuple(self.slots), self.named, self.faults, self.versions
        )

    # --- coordinators --------------------------------------------------------------------------

    def step_coordinator(self, pod: int, *event: object) -> None:
        """An event for a coordinator's machine."""
        trainer = self.trainers[pod]
        if not trainer.alive:
            return
        machine, effects = self.tables.coordinators.step(trainer.machine, event)
        self.trainers[pod] = trainer._replace(machine=machine)
        for effect in effects:
            self._carry_out(pod, effect)
        if self.tables.scope.prompt_sender:
            self.receive_at_sender(pod)

    def receive_at_sender(self, pod: int, *, all_of_it: bool = True) -> None:
        """Deliver the replies of the trainer's own sender; collective work waits for the others."""
        while (trainer := self.trainers[pod]).replies and trainer.alive:
            message = self.tables.messages.values[trainer.replies[0]]
            self.trainers[pod] = trainer._replace(replies=trainer.replies[1:])
            sender = self.tables.members.id(trainer.sender)
            machine, effects = self.tables.coordinators.step(
                trainer.machine, ("receive", sender, message)
            )
            self.trainers[pod] = self.trainers[pod]._replace(machine=machine)
            for effect in effects:
                self._carry_out(pod, effect)
            if not all_of_it:
                return

    def step_sender(self, pod: int, *event: object) -> None:
        """A step of the trainer's own sender."""
        trainer = self.trainers[pod]
        sender, replies = self.tables.members.step(trainer.sender, event)
        pending = trainer.replies + tuple(self.tables.number(reply) for reply in replies)
        self.trainers[pod] = trainer._replace(sender=sender, replies=pending)

    def publish(self, pod: int, number: int) -> None:
        """The trainer has made its `number`-th version."""
        lineage = self.tables.coordinators.get(self.trainers[pod].machine).lineage
        assert lineage is not None
        version = Version(lineage, number)
        for slot in self.slots:
            if slot.process is not None:
                held = self.tables.members.get(slot.process).machine.held
                require(held != version, f"2: two sets of weights are called {version}")
        self.step_coordinator(pod, "publish", version)

    def push_astray(self, pod: int, *, epoch: int, forged: bool) -> None:
        """Push a roster for another pod or time, or (`forged`) one that was never written."""
        if forged:
            members = self.tables.rollouts(epoch)[1:]
            roster = make_roster(epoch, pod, members)
        else:
            roster = self.tables.roster(epoch, self.named[epoch - 1])
        self.step_coordinator(pod, "push_roster", roster)

    def restart_trainer(self, pod: int) -> None:
        """Its container: memory is gone but for boot counter, roster and first epoch."""
        old = self.tables.coordinators.get(self.trainers[pod].machine)
        self.end_trainer(pod)
        self.trainers[pod] = self.tables.new_trainer(pod, old.boot + 1, old.since_epoch)
        if old.members.roster is not None:
            self.step_coordinator(pod, "push_roster", old.members.roster)

    def end_trainer(self, pod: int) -> None:
        """Its process is gone: members may still read what it sent."""
        for index, slot in enumerate(self.slots):
            stream = slot.stream
            if stream is not None and stream.pod == pod and stream.state != LEFT:
                stream = stream._replace(state=LEFT, broken=True, up=())
            remains = tuple(r for r in slot.remains if r.pod != pod)
            self.slots[index] = slot._replace(stream=stream, remains=remains)

    def _carry_out(self, pod: int, effect: CoordinatorEffect) -> None:
        if isinstance(effect, SendMessage):
            self._send(pod, effect)
        elif isinstance(effect, CloseStream):
            self._close(pod, effect.to)
        elif isinstance(effect, CoordinatorSuperseded):
            replaced = any(named > pod for named in self.named)
            require(replaced, "a coordinator stepped down that was not replaced")
            self.trainers[pod] = self.trainers[pod]._replace(alive=False, replies=())
            self.end_trainer(pod)
        elif isinstance(effect, SessionFormed):
            self._check_formed(pod, effect.report.session)

    def _send(self, pod: int, effect: SendMessage) -> None:
        trainer = self.trainers[pod]
        machine = self.tables.coordinators.get(trainer.machine)
        if effect.to == machine.sender:
            self.step_sender(pod, "receive", effect.message, (pod, machine.boot))
            return
        if isinstance(effect.message, SessionReady):
            return  # changes nothing that is asked for later
        index = self._slot_of(effect.to, pod)
        if index is None:
            return
        slot = self.slots[index]
        stream = slot.stream
        assert stream is not None
        assert slot.process is not None
        if isinstance(effect.message, Commit):
            process = self.tables.members.get(slot.process)
            version = effect.message.version
            whole = process.sent == (effect.message.session, version)
            held = process.machine.held == version
            require(whole or held, f"3: COMMIT of {version} for r{index}, which has not got it")
        number = self.tables.number(effect.message)
        self.slots[index] = slot._replace(stream=stream._replace(down=(*stream.down, number)))

    def _close(self, pod: int, member: MemberId) -> None:
        index = self._slot_of(member, pod)
        if index is not None:
            slot = self.slots[index]
            assert slot.stream is not None
            self.slots[index] = slot._replace(stream=slot.stream._replace(state=ENDED))

    def _slot_of(self, member: MemberId, pod: int) -> int | None:
        """Where `member` has a usable stream to the coordinator in `pod`."""
        for index, slot in enumerate(self.slots):
            stream, process = slot.stream, slot.process
            if (
                process is not None
                and stream is not None
                and stream.registered
                and stream.state == OPEN
                and stream.pod == pod
                and self.tables.members.id(process) == member
            ):
                return index
        return None

    # --- members -------------------------------------------------------------------------------

    def step_member(self, index: int, *event: object) -> None:
        """A step of a rollout's machine; its replies go onto its stream, if that is open."""
        slot = self.slots[index]
        assert slot.process is not None
        before = self.tables.members.get(slot.process)
        process, replies = self.tables.members.step(slot.process, event)
        after = self.tables.members.get(process)
        work = after.transfer
        if work is not None and work != before.transfer:
            require(after.joined == work[0], f"1: r{index} receives in {work[0]}, not joined")
            on_roster = index in self.tables.rollouts(work[0].epoch)
            require(on_roster, f"5: r{index} takes part in {work[0]}, not being on its roster")
        stream = slot.stream
        if stream is not None and stream.state == OPEN and replies:
            numbers = tuple(self.tables.number(reply) for reply in replies)
            stream = stream._replace(up=stream.up + numbers)
        self.slots[index] = slot._replace(process=process, stream=stream)

    def connect(self, index: int, pod: int) -> None:
        """A member gives up its stream, if it has one, and opens another."""
        slot = self.slots[index]
        assert slot.process is not None
        member = self.tables.members.id(slot.process)
        machine = self.tables.members.get(slot.process).machine
        hello = Hello(
            "job",
            "default",
            member,
            f"r{index}",
            "pool",
            f"ip-{index}",
            "",
            machine.session,
            machine.held,
        )
        boot = self.tables.coordinators.get(self.trainers[pod].machine).boot
        stream = MemberStream(pod, boot, False, OPEN, False, (self.tables.number(hello),), ())
        self.leave(index)
        self.slots[index] = self.slots[index]._replace(stream=stream)

    def leave(self, index: int) -> None:
        """A member's side of its stream ends; the coordinator may still read what was sent."""
        slot = self.slots[index]
        stream = slot.stream
        if stream is None or slot.process is None:
            return
        left = slot.remains
        if stream.state != LEFT:
            member = self.tables.members.id(slot.process)
            left = (*left, AbandonedStream(member, stream.pod, stream.registered, stream.up))
        self.slots[index] = slot._replace(stream=None, remains=left)

    # --- invariants that need more than one part -----------------------------------------------

    def _check_formed(self, pod: int, session: SessionId) -> None:
        # The next session may have begun in the same event; its PREPARE is carried out later.
        sender = self.tables.members.get(self.trainers[pod].sender).machine
        require(
            sender.session == session, f"{session} is usable, the sender is at {sender.session}"
        )
        for member in (seat.member for seat in sender._seats):
            process = self._process_of(member)
            if process is not None:
                known = self.tables.members.get(process)
                moved_on = known.machine.session is not None and known.machine.session > session
                joined = known.joined == session or moved_on
                require(joined, f"1: {session} is usable before {member} has joined it")

    def _process_of(self, member: MemberId) -> int | None:
        processes = [slot.process for slot in self.slots]
        processes += [trainer.sender for trainer in self.trainers if trainer.alive]
        for process in processes:
            if process is not None and self.tables.members.id(process) == member:
                return process
        return None
