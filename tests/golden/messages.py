"""Conditions and events of the scenarios, with a check that no message of the code is missing.

Every place in the planner that makes a message (`SPEAKERS`, and the errors that `validate.py` and
`refusals.py` yield) must be reached by a scenario: `unreached` lists those that are not.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
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
    """All messages of all scenarios, and the lines of the planner that ran."""

    conditions: set[Message] = field(default_factory=set)
    events: set[Message] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)


def collect() -> Spoken:
    """Play every scenario."""
    spoken = Spoken()
    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _arg: _trace(spoken, frame))
    try:
        played = [_play(scenario) for scenario in SCENARIOS.values()]
    finally:
        sys.settrace(before)
    for simulator in played:
        _collect(spoken, simulator)
    return spoken


def _play(scenario: Any) -> JobSimulator:
    simulator: JobSimulator = scenario()
    return simulator


def _trace(spoken: Spoken, frame: FrameType) -> Any:
    path = frame.f_code.co_filename
    if not path.startswith(str(PLAN)):
        return None

    def line(frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            spoken.lines.add((path, frame.f_lineno))
        return line

    return line


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


def unreached(spoken: Spoken) -> list[str]:
    """Places that make a message and that no scenario reached, as file:line."""
    missing = []
    for path, first, last in _places():
        if not any((str(path), number) in spoken.lines for number in range(first, last + 1)):
            missing.append(f"{path.relative_to(PLAN)}:{first}")
    return missing


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
