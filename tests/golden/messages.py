"""Conditions and events of the scenarios, with a check that no message of the code is missing.

Every place in the planner that makes a message (`SPEAKERS`, and the errors that `validate.py` and
`refusals.py` yield) must be reached by a scenario: `unreached` lists those that are not.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rollcall_operator import plan
from tests.golden.scenarios import SCENARIOS
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

PLAN = Path(plan.__file__).parent
SPEAKERS = {
    "ConditionState",
    "PodProblem",
    "JobOutcome",
    "PlannedEvent",
    "about",
    "_false",
    "_failed",
}
YIELDED = {"validate.py", "refusals.py", "session_history.py"}


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A condition (`what` is its type and status) or an event (its type)."""

    kind: str
    what: str
    reason: str
    text: str


@dataclass(slots=True)
class Spoken:
    """All messages of all scenarios."""

    conditions: set[Message] = field(default_factory=set)
    events: set[Message] = field(default_factory=set)


@functools.cache
def collect() -> Spoken:
    """Play every scenario, once in a process. Not to be changed by the caller."""
    spoken = Spoken()
    for scenario in SCENARIOS.values():
        _collect(spoken, scenario())
    return spoken


def _tracer(reached: set[tuple[str, int]]) -> Any:
    """Adds the lines of places that run; a function whose places all have run goes untraced."""
    places = {
        (str(path), number) for path, first, last in _places() for number in range(first, last + 1)
    }
    left: dict[CodeType, set[tuple[str, int]]] = {}

    def line(frame: FrameType, event: str, _arg: object) -> Any:
        here = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and here in places:
            reached.add(here)
            left[frame.f_code].discard(here)
        return line

    def call(frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        if code not in left:
            lines = {(code.co_filename, number) for _, _, number in code.co_lines() if number}
            left[code] = lines & places
        return line if left[code] else None

    return call


def _collect(spoken: Spoken, simulator: JobSimulator) -> None:
    for made in simulator.plans:
        statuses = [("RolloutPool", status) for status in made.pool_statuses.values()]
        if made.job_status is not None:
            statuses.append(("RLJob", made.job_status))
        for kind, status in statuses:
            for c in status["conditions"]:
                what = f"{c['type']}={c['status']}"
                spoken.conditions.add(Message(kind, what, c["reason"], c["message"]))
        for event in made.events:
            kind = event.regarding["kind"]
            spoken.events.add(Message(kind, event.type, event.reason, event.message))


def render_conditions(spoken: Spoken) -> str:
    """By kind, condition and reason: each distinct message."""
    return _render(spoken.conditions)


def render_events(spoken: Spoken) -> str:
    """By kind, type and reason: each distinct message."""
    return _render(spoken.events)


def _render(messages: set[Message]) -> str:
    lines: list[str] = []
    heading = ""
    for message in sorted(messages):
        title = f"{message.kind} {message.what} {message.reason}"
        if title != heading:
            lines += ["", title] if lines else [title]
            heading = title
        lines += [f"    {line}" for line in message.text.splitlines() or [""]]
    return "\n".join(lines) + "\n"


def unreached() -> list[str]:
    """Places that make a message and that no scenario reaches, as file:line.

    Plays every scenario with a trace of all calls, which takes half a minute.
    """
    reached = set[tuple[str, int]]()
    before = sys.gettrace()
    sys.settrace(_tracer(reached))
    try:
        for scenario in SCENARIOS.values():
            scenario()
    finally:
        sys.settrace(before)
    return [
        f"{path.relative_to(PLAN)}:{first}"
        for path, first, last in _places()
        if not any((str(path), number) in reached for number in range(first, last + 1))
    ]


def _places() -> Iterator[tuple[Path, int, int]]:
    for path in sorted(PLAN.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            end = getattr(node, "end_lineno", None)
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                if name in SPEAKERS and end is not None:
                    yield path, node.lineno, end
            elif isinstance(node, ast.Yield) and path.name in YIELDED and end is not None:
                yield path, node.lineno, end
