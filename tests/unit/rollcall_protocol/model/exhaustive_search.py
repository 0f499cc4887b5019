"""The search: every state of a scope, breadth first, so that the first violation is a shortest one.

In each state the invariants must hold. From each, once nothing goes wrong any more, the group must
come to rest with all members of the last roster in sync.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rollcall_protocol.membership.session_formation import FormationPhase
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_protocol.model.apply_move import MoveApplier
from tests.unit.rollcall_protocol.model.enabled_moves import EnabledMoves
from tests.unit.rollcall_protocol.model.group_tables import GroupTables
from tests.unit.rollcall_protocol.model.search_scopes import ModelFault, SearchScope
from tests.unit.rollcall_protocol.model.state import GroupState, InvariantViolation, require
from tests.unit.rollcall_protocol.model.transition import Move

MAX_CALM_MOVES = 600


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search covered, or the violation it ended with and the moves that lead there."""

    scope: str
    states: int
    moves: int
    machines: int
    violation: str = ""
    trace: tuple[Move, ...] = ()

    def __str__(self) -> str:
        summary = f"{self.scope}: {self.states} states, {self.moves} moves"
        if not self.violation:
            return summary
        steps = "\n".join(f"  {' '.join(str(part) for part in move)}" for move in self.trace)
        return f"{summary}\n{steps}\n  -> {self.violation}"


class ExhaustiveSearch:
    """One exploration of `scope`, which ends at the first violation or when all is seen."""

    def __init__(self, scope: SearchScope) -> None:
        self.scope = scope
        self.tables = GroupTables(scope)
        self.moves = EnabledMoves(self.tables)
        self.steps = MoveApplier(self.tables, self.moves)
        self._parents: dict[GroupState, tuple[GroupState, Move] | None] = {}
        self._calm: set[GroupState] = set()  # known to come to rest well
        self._route: list[Move] = []  # of the run that comes to rest
        self._done = 0

    def run(self, *, limit: int | None = None) -> SearchResult:
        """Explore; `limit` is on states, for mutants that would open a space without end."""
        first = self.tables.initial()
        if self.scope.running:
            try:
                *_, first = self._rest(first)
            except InvariantViolation as violation:
                return SearchResult(self.scope.name, 0, 0, 0, str(violation), tuple(self._route))
            first = first._replace(faults=self.scope.faults)
        self._parents[first] = None
        frontier = [first]
        while frontier:
            following: list[GroupState] = []
            for state in frontier:
                try:
                    self._route.clear()
                    self._check(state)
                    self._come_to_rest(state)
                    for move in self._all(state):
                        self._done += 1
                        try:
                            after = self.steps.apply(state, move)
                        except InvariantViolation as violation:
                            return self._found(state, str(violation), move)
                        if after not in self._parents:
                            self._parents[after] = (state, move)
                            following.append(after)
                except InvariantViolation as violation:
                    return self._found(state, str(violation), *self._route)
            if limit is not None and len(self._parents) > limit:
                break
            frontier = following
        return self._found(first)

    def _all(self, state: GroupState) -> Iterator[Move]:
        if self.scope.reduced and (move := self.moves.first(state)) is not None:
            yield move
            return
        quiet = True
        for move in self.moves.system(state):
            quiet = False
            yield move
        yield from self.moves.environment(state)
        if quiet:
            yield from self.moves.deadlines(state)
        if state.faults:
            if not quiet and ModelFault.LATE in self.scope.kinds:
                for _, *about in self.moves.deadlines(state):
                    yield ("late", *about)
            yield from self.moves.faults(state)

    # --- invariants ------------------------------------------------------------------------------

    def _check(self, state: GroupState) -> None:
        """The coordinator's record of a member is true, or was when the member reported it."""
        held = {}
        for slot in state.slots:
            if slot.process is not None:
                process = self.tables.members.get(slot.process)
                held[self.tables.members.id(slot.process)] = process.machine.held
        for trainer in state.trainers:
            if not trainer.alive:
                continue
            machine = self.tables.coordinators.get(trainer.machine)
            current, publisher = machine.current, machine.publisher
            committing = publisher.waiting if publisher.committing else set()
            for member, (believed, in_sync) in self.tables.coordinators.beliefs(
                trainer.machine
            ).items():
                real = held.get(member)
                if member not in held:
                    continue
                if believed is not None:
                    require(
                        real is not None and real >= believed,  # type: ignore[operator]
                        f"3: {member} is thought to hold {believed} and holds {real}",
                    )
                if in_sync:
                    require(
                        self._fresh(real, current, behind=member in committing),
                        f"3: {member} is in sync with {real} while {current} is current",
                    )

    def _fresh(self, real: Version | None, current: Version | None, *, behind: bool) -> bool:
        if real is None or current is None:
            return False
        if real.lineage != current.lineage:
            return real > current  # it follows a successor already
        return current.number - real.number <= self.scope.max_staleness + behind

    # --- liveness --------------------------------------------------------------------------------

    def _come_to_rest(self, state: GroupState) -> None:
        """7: nothing goes wrong any more."""
        path = []
        self._route.clear()
        for after in self._rest(state):
            if after in self._calm:
                break
            path.append(after)
        else:
            self._check_rest(path[-1])
        self._calm.update(path)

    def _rest(self, state: GroupState) -> Iterator[GroupState]:
        """The states of one fair run without faults, to its end."""
        state = state._replace(faults=0)
        yield state
        for _ in range(MAX_CALM_MOVES):
            move = self._calm_move(state)
            if move is None:
                return
            self._route.append(move)
            state = self.steps.apply(state, move)
            yield state
        raise InvariantViolation("7: the group does not come to rest")

    def _calm_move(self, state: GroupState) -> Move | None:
        move = next(self.moves.system(state), None)
        if move is not None:
            return move
        wanted = self.tables.rollouts(len(state.named)) if state.named else ()
        running = self.scope.running and not self._parents
        for move in self.moves.environment(state):
            kind = move[0]
            if kind == "start" and move[1] not in wanted:
                continue
            if kind in {"write roster", "push"} and not self._must_write(state, move):
                continue
            if kind == "publish" and not (running and state.versions == self.scope.versions):
                continue
            return move
        return next(self.moves.deadlines(state), None)

    def _must_write(self, state: GroupState, move: Move) -> bool:
        """The operator writes no more than it has to."""
        if not state.named:
            return move[-1] in {1, "write roster"}
        if move[0] == "push":
            return move[2] == len(state.named)
        return state.named[-1] != len(state.trainers) - 1

    def _check_rest(self, state: GroupState) -> None:
        trainer = state.trainers[-1]
        machine = self.tables.coordinators.get(trainer.machine)
        wanted = self.tables.allowed(len(state.named))
        require(trainer.alive, "7: the coordinator stepped down without a successor")
        require(machine.forming is FormationPhase.STABLE, f"7: rests at {machine.forming}")
        epoch = machine.formation.roster_epoch
        require(epoch == len(state.named), f"7: rests with a session for the roster of {epoch}")
        seated = {member.pod_uid for member in machine.seated}
        require(seated == wanted, f"7: rests with {sorted(seated)}, not {sorted(wanted)}")
        require(machine.publisher.publication is None, "7: a version is never published")
        for uid, member in machine.members.by_pod.items():
            if uid in wanted and machine.current is not None:
                state_of = member.state
                require(state_of is MemberState.IN_SYNC, f"7: {member.id} rests at {state_of}")

    def _found(self, state: GroupState, violation: str = "", *last: Move) -> SearchResult:
        trace = list(last)
        if violation:
            while (parent := self._parents[state]) is not None:
                state, move = parent
                trace.insert(0, move)
        machines = len(self.tables.coordinators) + len(self.tables.members)
        return SearchResult(
            self.scope.name, len(self._parents), self._done, machines, violation, tuple(trace)
        )
