"""Copies and canonical keys of the production machines, so that equal states are seen once.

Both work on whatever attributes the machines have, except those that only reports are made of.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.membership.member_table import MemberRecord, MemberTable
from rollcall_protocol.membership.session_formation import SessionFormation
from rollcall_protocol.membership.stretched_bounds import StretchedBound, WaitBounds
from rollcall_protocol.membership.version_publisher import VersionPublisher
from rollcall_protocol.wire.messages import Hello
from rollcall_protocol.wire.roster import Roster

T = TypeVar("T")

# Attributes without influence on behaviour: texts, counters and times for reports.
_FOR_REPORTS: dict[type, frozenset[str]] = {
    # Claims matter only with a trainer's word that no member joined, which the model has not.
    CoordinatorMachine: frozenset(
        {"timeouts", "bounds", "losses", "sender", "_effects", "_claims"}
    ),
    SessionFormation: frozenset({"rebuilds", "_began", "_bounds"}),
    VersionPublisher: frozenset({"_bounds"}),
    MemberRecord: frozenset({"reason"}),
    MemberTable: frozenset({"_catch_up"}),
}
_SHORT: dict[type, Callable[[Any], Hashable]] = {
    Hello: lambda hello: (hello.member, hello.sender),
    Roster: lambda roster: (roster.epoch, roster.coordinator_uid, roster.members),
}
# Attributes of what changes, None if frozen. Bounds do not stretch in the model: states share them.
_PLANS: dict[type, tuple[str, ...] | None] = {StretchedBound: None, WaitBounds: None}


def clone(value: T) -> T:
    """A copy that shares nothing that may change."""
    kind: type = type(value)
    if kind is dict:
        return {k: clone(v) for k, v in value.items()}  # type: ignore[attr-defined,return-value]
    if kind in {set, list, deque}:
        return value.copy()  # type: ignore[attr-defined,no-any-return]
    names = _plan(value)
    if names is None:
        return value
    made: T = object.__new__(kind)
    for name in names:
        setattr(made, name, clone(getattr(value, name)))
    return made


def key(value: object) -> Hashable:
    """Equal for machines that behave equally from now on."""
    kind = type(value)
    if kind in _SHORT:
        return _SHORT[kind](value)
    if isinstance(value, dict):
        return tuple(sorted(((k, key(v)) for k, v in value.items()), key=lambda item: item[0]))
    if isinstance(value, (set, frozenset)):
        return frozenset(value)
    if isinstance(value, (list, deque)):
        return tuple(key(v) for v in value)
    names = _plan(value)
    if names is None:
        return value
    ignored = _FOR_REPORTS.get(kind, frozenset())
    return tuple(key(getattr(value, name)) for name in names if name not in ignored)


def _plan(value: object) -> tuple[str, ...] | None:
    kind = type(value)
    if kind not in _PLANS:
        if isinstance(value, (str, int, float, tuple)):
            _PLANS[kind] = None
        elif is_dataclass(value):
            frozen: bool = vars(kind)["__dataclass_params__"].frozen
            _PLANS[kind] = None if frozen else tuple(field.name for field in fields(value))
        else:
            _PLANS[kind] = tuple(vars(value)) if hasattr(value, "__dict__") else None
    return _PLANS[kind]
