"""One member's machine, which may receive any message in any order, any number of times: doubled,
reordered, misdelivered, of replaced coordinators and of their successors.

The member must keep its invariants without trust in the sender of a message. The only assumption is
that one session is prepared with one list of seats.
"""

from collections.abc import Iterator

from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    CatchUp,
    Commit,
    Join,
    Prepare,
    SessionMessage,
    SessionReady,
    Stage,
)
from tests.unit.rollcall_protocol.model.coordinator_steps import MANIFEST
from tests.unit.rollcall_protocol.model.member_steps import Event, MemberSteps
from tests.unit.rollcall_protocol.model.state import InvariantViolation, MemberProcess

MAX_FETCHES, MAX_APPLIES = 1, 2  # under way at once, with those that wait
SESSIONS = (SessionId(1, 1, 1), SessionId(1, 2, 1))
# The number goes back where the trainer's next incarnation does not know of a member.
VERSIONS = (Version(Lineage(1, 1), 2), Version(Lineage(1, 2), 1))


def _messages() -> list[tuple[SessionMessage, tuple[int, int]]]:
    found: list[tuple[SessionMessage, tuple[int, int]]] = []
    for session in SESSIONS:
        leader = (session.epoch, session.boot)
        found += [(m(session), leader) for m in (Join, SessionReady)]
        found.append((Prepare(session, ()), leader))
        for version in VERSIONS:
            found.append((Stage(session, version, MANIFEST), leader))
            found.append((Commit(session, version), leader))
    return [*found, *((CatchUp(version, MANIFEST, ()), (0, 0)) for version in VERSIONS)]


MESSAGES = _messages()


def events(process: MemberProcess) -> Iterator[Event]:
    """What may happen to the member now."""
    applies = len(process.applies) + len(process.machine._next)
    for message, leader in MESSAGES:
        fetches = isinstance(message, CatchUp) and len(process.fetches) >= MAX_FETCHES
        if not fetches and not (isinstance(message, Commit) and applies >= MAX_APPLIES):
            yield ("receive", message, leader)
    for error in ("", "broken"):
        if process.joining is not None:
            yield ("joined", error)
        if process.transfer is not None:
            yield ("moved", error, bool(error))
        for which in range(len(process.applies)):
            yield ("applied", which, error)
        for which in range(len(process.fetches)):
            if applies < MAX_APPLIES:
                yield ("fetched", which, error)
    held = process.machine.session
    for session in SESSIONS:
        if held is not None and session < held:
            yield ("late", session, VERSIONS[-1])


def explore_member(*, limit: int | None = None) -> tuple[int, str]:
    """States seen and, if an invariant broke, how."""
    processes = MemberSteps(alone=True)
    first = processes.start(MemberId("uid-0", "b1"))
    parents: dict[int, tuple[int, Event] | None] = {first: None}
    frontier = [first]
    while frontier and (limit is None or len(parents) < limit):
        following = []
        for number in frontier:
            for event in events(processes.get(number)):
                try:
                    after, _ = processes.step(number, event)
                except InvariantViolation as violation:
                    return len(parents), f"{_trace(parents, number, event)}\n  -> {violation}"
                if after not in parents:
                    parents[after] = (number, event)
                    following.append(after)
        frontier = following
    return len(parents), ""


def _trace(parents: dict[int, tuple[int, Event] | None], number: int, last: Event) -> str:
    steps = [last]
    while (parent := parents[number]) is not None:
        number, event = parent
        steps.insert(0, event)
    return "\n".join(f"  {' '.join(str(part) for part in step)}" for step in steps)
