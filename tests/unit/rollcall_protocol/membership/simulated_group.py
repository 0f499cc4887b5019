"""A simulated sync group: one coordinator machine, member machines, ordered streams that break."""

import random
from collections import deque
from dataclasses import dataclass, field

from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    ProtocolTimeouts,
    SendMessage,
    SessionFormed,
    VersionPublished,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_machine import (
    AbortEngine,
    ApplyVersion,
    FetchVersion,
    JoinEngine,
    MemberEffect,
    MemberMachine,
    SendToCoordinator,
    TransferVersion,
)
from rollcall_protocol.membership.session_formation import FormationPhase
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import MemberState, SessionReport
from rollcall_protocol.wire.messages import Ack, Hello, MemberMessage, Prepare, Seat, Stage
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember
from rollcall_protocol.wire.weight_manifest import WeightManifest

TIMEOUTS = ProtocolTimeouts(
    settle=1, ack_timeout=5, join_timeout=5, stage_timeout=30, commit_timeout=5
)
MANIFEST = WeightManifest(tensors=(), total_bytes=0, bucket_bytes=1, digests=())
SENDER = MemberId("trainer", "b1")


def roster(epoch: int, *pods: str, coordinator: str = "trainer") -> Roster:
    members = tuple(RosterMember(f"uid-{pod}", pod, f"ip-{pod}", "pool") for pod in pods)
    return Roster("job", "default", epoch, coordinator, EpochCause.MEMBERS_JOINED, members)


def machine(
    *, max_staleness: int = 2, boot: int = 1, since_epoch: int | None = None, senders: int = 1
) -> CoordinatorMachine:
    return CoordinatorMachine(
        job_uid="job",
        group="default",
        boot=boot,
        since_epoch=since_epoch,
        sender=Seat(SENDER, "ip-trainer", ""),
        fallback_donor="trainer:7100",
        timeouts=TIMEOUTS,
        max_staleness=max_staleness,
        senders=senders,
    )


def hello(pod: str, *, boot: str = "b1", held: Version | None = None) -> Hello:
    member = MemberId(f"uid-{pod}", boot)
    return Hello("job", "default", member, pod, "pool", f"ip-{pod}", "", None, held)


@dataclass
class SimulatedMember:
    """A process: its machine, both directions of its stream, and what its engine is busy with."""

    id: MemberId
    pod: str
    machine: MemberMachine = field(default_factory=MemberMachine)
    inbox: deque[object] = field(default_factory=deque)
    outbox: deque[MemberMessage] = field(default_factory=deque)
    joining: SessionId | None = None
    transfer: tuple[SessionId, Version] | None = None
    serves: list[Version] = field(default_factory=list)
    alive: bool = True


class SimulatedGroup:
    """Drives everything from one seed and checks the safety invariants after each step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.coordinator = machine()
        self.workers: dict[MemberId, SimulatedMember] = {SENDER: SimulatedMember(SENDER, "trainer")}
        self.boots = 0
        self.pods: list[str] = []
        self.epoch = 0
        self.number = 0
        self.publishing = False
        self.published: list[Version] = []
        self.formed: list[SessionReport] = []
        self.seated: set[MemberId] = set()  # in a session that was usable
        self.committed: dict[SessionId, frozenset[MemberId]] = {}
        self.passed: dict[object, set[MemberId]] = {}  # members that completed a join or transfer
        self.late: deque[tuple[SimulatedMember, object]] = (
            deque()
        )  # of a coordinator that is no more

    # --- the environment -----------------------------------------------------------------------

    @property
    def session(self) -> SessionId:
        """The session that the coordinator formed or is forming."""
        assert self.coordinator.session is not None
        return self.coordinator.session

    def push(self, *pods: str) -> None:
        self.epoch += 1
        self.pods = list(pods)
        self.run(self.coordinator.push_roster(roster(self.epoch, *pods), self.now))

    def start(self, pod: str) -> SimulatedMember:
        self.boots += 1
        for older in [w for w in self.workers.values() if w.pod == pod]:
            self.kill(older, noticed=False)
        worker = SimulatedMember(MemberId(f"uid-{pod}", f"b{self.boots}"), pod)
        self.workers[worker.id] = worker
        self.connect(worker)
        return worker

    def connect(self, worker: SimulatedMember) -> None:
        worker.inbox.clear()
        worker.outbox.clear()
        held, session = worker.machine.held, worker.machine.session
        greeting = Hello(
            "job", "default", worker.id, worker.pod, "pool", worker.pod, "", session, held
        )
        self.run(self.coordinator.hello(greeting, self.now))

    def kill(self, worker: SimulatedMember, *, noticed: bool = True) -> None:
        worker.alive = False
        del self.workers[worker.id]
        if noticed:
            self.run(self.coordinator.lost(worker.id, "connection reset", self.now))

    def restart_coordinator(self) -> None:
        """The trainer's container restarts: memory is gone, streams break, some messages linger."""
        old = self.coordinator
        self.seated.clear()
        self.late += [(w, message) for w in self.workers.values() for message in w.inbox]
        self.publishing = False
        boot, since = old.boot + 1, old.since_epoch
        self.coordinator = machine(boot=boot, since_epoch=since)
        self.workers[SENDER] = SimulatedMember(SENDER, "trainer")
        held = old.members.roster
        if held is not None:
            self.run(self.coordinator.push_roster(held, self.now))
        for worker in [w for w in self.workers.values() if w.id != SENDER]:
            self.connect(worker)
        self.number = max(0, self.coordinator.highest_number)

    def publish(self) -> None:
        lineage = self.coordinator.lineage
        if lineage is None or self.publishing:
            return
        self.publishing = True
        self.number += 1
        version = Version(lineage, self.number)
        self.run(self.coordinator.publish(version, MANIFEST, self.now))

    def run(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendMessage):
                if isinstance(effect.message, (Prepare, Stage)) and effect.to != SENDER:
                    assert effect.to.pod_uid in self.coordinator.members.listed
                if effect.to in self.workers:
                    self.workers[effect.to].inbox.append(effect.message)
            elif isinstance(effect, CloseStream):
                if effect.to in self.workers:
                    worker = self.workers[effect.to]
                    self.run(self.coordinator.lost(worker.id, effect.reason, self.now))
                    self.connect(worker)
            elif isinstance(effect, SessionFormed):
                self.formed.append(effect.report)
                self.seated |= set(self.coordinator.seated)
                session = effect.report.session
                joined = self.passed.get(("joining", session), set())
                assert joined >= self.committed[session], "usable before all had joined"
            elif isinstance(effect, VersionPublished):
                self.published.append(effect.version)
                self.publishing = False
        self.check()

    # --- one step ------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, SimulatedMember | None]]:
        found: list[tuple[str, SimulatedMember | None]] = []
        for worker in self.workers.values():
            if worker.inbox:
                found.append(("deliver", worker))
            if worker.outbox:
                found.append(("report", worker))
            if worker.joining and self._all_reached(worker.joining, "joining"):
                found.append(("join", worker))
            if worker.transfer and self._all_reached(worker.transfer, "transfer"):
                found.append(("transfer", worker))
        return found

    def _all_reached(self, what: object, attribute: str) -> bool:
        session = what if isinstance(what, SessionId) else what[0]  # type: ignore[index]
        seats = self.committed.get(session)
        if seats is None:
            return False
        present = {w.id for w in self.workers.values() if getattr(w, attribute) == what}
        done = self.passed.setdefault((attribute, what), set())
        done |= present
        return seats <= done

    def step(self) -> bool:
        """Make one random move; False when there is none (then time has to pass)."""
        if self.late and self.random.random() < 0.2:
            zombie, order = self.late.popleft()
            if self.workers.get(zombie.id) is zombie:
                effects = zombie.machine.receive(order)  # type: ignore[arg-type]
                self.perform(zombie, [e for e in effects if not isinstance(e, SendToCoordinator)])
        moves = self.moves()
        if not moves:
            return False
        move, worker = self.random.choice(moves)
        assert worker is not None
        if move == "deliver":
            message = worker.inbox.popleft()
            if isinstance(message, Prepare):
                self.committed[message.session] = frozenset(s.member for s in message.seats)
            self.perform(worker, worker.machine.receive(message))  # type: ignore[arg-type]
        elif move == "report":
            message = worker.outbox.popleft()
            self.run(self.coordinator.receive(worker.id, message, self.now))  # type: ignore[arg-type]
        elif move == "join":
            session, worker.joining = worker.joining, None
            assert session is not None
            self.perform(worker, worker.machine.joined(session))
        else:
            transfer, worker.transfer = worker.transfer, None
            assert transfer is not None
            self.perform(worker, worker.machine.staged(*transfer))
        self.check()
        return True

    def perform(self, worker: SimulatedMember, effects: list[MemberEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToCoordinator):
                worker.outbox.append(effect.message)
            elif isinstance(effect, AbortEngine):
                worker.joining = worker.transfer = None
            elif isinstance(effect, JoinEngine):
                worker.joining = effect.session
            elif isinstance(effect, TransferVersion):
                worker.transfer = (effect.session, effect.version)
            elif isinstance(effect, ApplyVersion):
                worker.serves.append(effect.version)
                self.perform(worker, worker.machine.applied(effect.version, effect.session))
            elif isinstance(effect, FetchVersion):
                holders = [w for w in self.workers.values() if w.machine.held == effect.version]
                current = self.coordinator.current == effect.version
                error = "" if holders or current else "no donor holds it"
                self.perform(worker, worker.machine.fetched(effect.version, error=error))

    def pass_time(self) -> None:
        deadline = self.coordinator.next_deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            self.run(self.coordinator.tick(self.now))

    def settle(self, *, steps: int = 3000) -> None:
        """Let everything happen that can, without further faults."""
        for _ in range(steps):
            if not self.step():
                if self.coordinator.next_deadline() is None:
                    return
                self.pass_time()
        raise AssertionError("the group did not come to rest")

    # --- invariants ----------------------------------------------------------------------------

    def check(self) -> None:
        for worker in self.workers.values():
            assert worker.serves == sorted(worker.serves), "a served version went back"
        for member in self.coordinator.members.by_pod.values():
            if member.state is MemberState.IN_SYNC:
                assert member.id in self.seated, "in sync before its session was usable"
        seen = [ack for w in self.workers.values() for ack in w.outbox if isinstance(ack, Ack)]
        for ack in seen:
            assert self.coordinator.session is None or ack.session <= self.coordinator.session

    def assert_converged(self) -> None:
        machine = self.coordinator
        assert machine.forming is FormationPhase.STABLE
        assert machine.formed
        assert machine.formation.roster_epoch == self.epoch
        assert {member.pod_uid for member in machine.seated} == {f"uid-{p}" for p in self.pods}
        assert not self.publishing
        for worker in self.workers.values():
            if worker.pod in self.pods and machine.current is not None:
                assert worker.machine.held == machine.current
                assert machine.serving(worker.id)
