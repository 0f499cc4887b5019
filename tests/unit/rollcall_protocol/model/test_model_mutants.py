"""Each fence of the protocol is needed: the model finds what goes wrong when one is left out."""

import inspect
import sys
import textwrap
from dataclasses import dataclass
from types import FunctionType

import pytest

from rollcall_protocol.membership import member_table
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_machine import MemberMachine
from rollcall_protocol.membership.member_table import MemberTable
from rollcall_protocol.membership.session_formation import SessionFormation
from rollcall_protocol.membership.version_publisher import VersionPublisher
from rollcall_protocol.wire.ids import Version
from tests.unit.rollcall_protocol.model.exhaustive_search import ExhaustiveSearch
from tests.unit.rollcall_protocol.model.search_scopes import LARGE, LARGEST, QUICK
from tests.unit.rollcall_protocol.model.single_member import explore_member

SCOPES = {scope.name: scope for scope in (*QUICK, *LARGE, *LARGEST)}
ALONE = "one member, any message"
MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class Mutant:
    """`line` of a function is replaced; the model must find `violation` in `scope`."""

    name: str
    owner: object
    function: str
    line: str
    instead: str
    scope: str
    violation: str

    def __str__(self) -> str:
        return self.name


def seed(mutant: Mutant, patch: pytest.MonkeyPatch) -> None:
    """Put the bug into the production code."""
    original = inspect.getattr_static(mutant.owner, mutant.function)
    plain = original.fget if isinstance(original, property) else original
    assert isinstance(plain, FunctionType)
    source = textwrap.dedent(inspect.getsource(plain))
    assert source.count(mutant.line) == 1, f"{mutant.function} has changed: {mutant.line}"
    made: dict[str, object] = {}
    names = vars(sys.modules[plain.__module__])
    exec(source.replace(mutant.line, mutant.instead), dict(names), made)  # noqa: S102
    patch.setattr(mutant.owner, mutant.function, made[mutant.function])


MACHINE, MEMBER = CoordinatorMachine, MemberMachine
MUTANTS = (
    Mutant(
        "a member obeys messages of older sessions",
        MEMBER,
        "receive",
        "message.session < self.session",
        "False",
        ALONE,
        "4:",
    ),
    Mutant(
        "a member takes part in a session that it has not prepared",
        MEMBER,
        "receive",
        "message.session != self.session",
        "False",
        ALONE,
        "4:",
    ),
    Mutant(
        "a join of an older session is acknowledged",
        MEMBER,
        "joined",
        "session != self.session",
        "False",
        ALONE,
        "4:",
    ),
    Mutant(
        "a transfer of an older session counts",
        MEMBER,
        "staged",
        "session != self.session",
        "False",
        ALONE,
        "4:",
    ),
    Mutant(
        "a version that is not staged is served",
        MEMBER,
        "_apply",
        "self._staged != version",
        "False",
        ALONE,
        "3:",
    ),
    Mutant(
        "a transfer that failed counts as staged",
        MEMBER,
        "staged",
        "None if error else version",
        "version",
        ALONE,
        "3:",
    ),
    Mutant(
        "a served version goes back",
        MEMBER,
        "_apply",
        "self.held is not None and version <= self.held",
        "False",
        ALONE,
        "2:",
    ),
    Mutant(
        "two versions are applied at once",
        MEMBER,
        "_apply",
        "self._applying is not None",
        "False",
        ALONE,
        "2:",
    ),
    Mutant(
        "acknowledgements of another session count",
        MACHINE,
        "_on_ack",
        "self.session is None or ack.session != self.session",
        "self.session is None",
        "one comes and dies",
        "4:",
    ),
    Mutant(
        "one join is enough",
        SessionFormation,
        "acknowledged",
        "return not self.waiting",
        "return True",
        "come and go",
        "1:",
    ),
    Mutant(
        "one receiver is enough to commit",
        VersionPublisher,
        "acknowledged",
        "return not publication.waiting",
        "return True",
        "rollouts fail",
        "3:",
    ),
    Mutant(
        "a transfer that failed is committed",
        MACHINE,
        "_on_stage_ack",
        "if ack.error:",
        "if False:",
        "engines fail",
        "3:",
    ),
    Mutant(
        "a version is not sent again in the next session",
        VersionPublisher,
        "interrupt",
        "publication is not None and self.staging",
        "False",
        "rollouts fail",
        "8:",
    ),
    Mutant(
        "a COMMIT waits for a member that left the roster",
        VersionPublisher,
        "interrupt",
        "publication.waiting &= set(seated)",
        "pass",
        "one leaves",
        "8:",
    ),
    Mutant(
        "a member that is not on the roster catches up",
        MemberTable,
        "admit_waiting",
        "uid in self.listed",
        "True",
        "one comes",
        "5:",
    ),
    Mutant(
        "a member that was overtaken while it waited gets a seat",
        MemberTable,
        "eligible",
        "(self.is_current(m.held) or m.id in committing)",
        "True",
        "one comes",
        "7:",
    ),
    Mutant(
        "messages of an older incarnation count",
        MemberTable,
        "find",
        "known is not None and known.id == member",
        "known is not None",
        "rollouts fail",
        "7:",
    ),
    Mutant(
        "the Hello of a dead incarnation keeps the present one out",
        MACHINE,
        "hello",
        "if old.id != hello.member:",
        "if False:",
        "one, in full",
        "7:",
    ),
    Mutant(
        "the lineage of the held version is not compared",
        MemberTable,
        "is_current",
        "held.lineage == self.current.lineage",
        "True",
        "the trainer fails",
        "3:",
    ),
    Mutant(
        "a restarted trainer keeps its lineage",
        MACHINE,
        "lineage",
        "self.boot",
        "1",
        "the trainer fails",
        "2:",
    ),
    Mutant(
        "the boot is left out of the session",
        SessionFormation,
        "begin",
        "self._boot",
        "1",
        "the trainer fails",
        "1:",
    ),
    Mutant(
        "a session is kept though a member waits to join it",
        MACHINE,
        "_gather",
        "wanted == set(self.seated)",
        "wanted >= set(self.seated)",
        "come and go",
        "7:",
    ),
    Mutant(
        "a session is kept though one of its seats left the roster",
        MACHINE,
        "push_roster",
        "if gone:",
        "if False:",
        "one leaves",
        "5:",
    ),
    Mutant(
        "other seats form a session of the kept one's epoch",
        MACHINE,
        "_form",
        "roster.epoch, members",
        "(self.session or roster).epoch, members",
        "one comes",
        "5:",
    ),
    Mutant(
        "a successor begins in the epoch of the session that it ends",
        SessionFormation,
        "begin",
        "SessionId(epoch, self._boot, attempt)",
        "SessionId(1, self._boot, attempt)",
        "the trainer is replaced",
        "1:",
    ),
    Mutant(
        "a roster for another coordinator is taken",
        member_table,
        "is_newer_roster",
        "roster.coordinator_uid != coordinator",
        "False",
        "the trainer is replaced",
        "1:",
    ),
    Mutant(
        "an older roster is taken",
        member_table,
        "is_newer_roster",
        "roster.epoch < epoch",
        "False",
        "the trainer fails, one joins",
        "1:",
    ),
    Mutant(
        "another roster of the same epoch is taken",
        member_table,
        "is_newer_roster",
        "held is not None and roster.epoch == epoch",
        "False",
        "the trainer fails",
        "1:",
    ),
)


def test_the_order_of_versions_needs_the_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Version, "__le__", lambda self, other: self.number <= other.number)
    monkeypatch.setattr(Version, "__lt__", lambda self, other: self.number < other.number)
    found = ExhaustiveSearch(SCOPES["the trainer fails"]).run(limit=MAX_STATES)
    print(found)
    assert found.violation


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_bug_that_is_seeded_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(mutant, monkeypatch)
    if mutant.scope == ALONE:
        states, violation = explore_member(limit=MAX_STATES)
        summary = f"{states} states\n{violation}"
    else:
        found = ExhaustiveSearch(SCOPES[mutant.scope]).run(limit=MAX_STATES)
        violation, summary = found.violation, str(found)
    print(summary)
    assert mutant.violation in violation, f"not found: {summary}"
