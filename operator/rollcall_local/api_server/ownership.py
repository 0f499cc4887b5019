"""Server-side apply: which fields a manager adds, takes over, and removes.

What a manager has set is a part of the object: the fields of its last apply whose values no other
writer has changed since. All other writes are one more manager.

https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from collections.abc import Mapping
from typing import Any

from rollcall_local.api_server import patches
from rollcall_local.api_server.errors import ChangedObjectError

Object = dict[str, Any]
Parts = Mapping[str, Object]
"""By manager."""

UPDATES = "an update"
"""The manager of writes that are no apply."""
_SHOWN = 3  # fields that a message names


def apply(live: Object, body: Object, parts: Parts, *, manager: str, force: bool) -> Object:
    """`live` with the fields of `body`, and without those that `manager` has set and leaves out.

    A field that others have set as well stays. Without `force`, ChangedObjectError for those whose
    values would change.
    """
    others = {name: part for name, part in parts.items() if name != manager}
    if not force:
        _refuse_conflicts(live, body, others)
    kept = _without(live, parts.get(manager, {}), body, tuple(others.values()))
    return dict(_with(kept, body))


def after_apply(parts: Parts, body: Object, before: Object, now: Object, manager: str) -> Parts:
    """What each has set once `manager` has applied `body`, which made `now` of `before`."""
    others = {name: part for name, part in parts.items() if name != manager}
    return {**_still_set(others, before, now), manager: body}


def after_update(parts: Parts, before: Object, now: Object) -> Parts:
    """What each has set after a write that is no apply."""
    still = _still_set(parts, before, now)
    return {**still, UPDATES: patches.merge(still.get(UPDATES, {}), _changed(before, now))}


def _still_set(parts: Parts, before: Object, now: Object) -> dict[str, Object]:
    return {name: _unchanged(part, before, now) for name, part in parts.items()}


def _unchanged(part: Object, before: Object, now: Object) -> Object:
    kept = {}
    for name, inner in part.items():
        old, new = before.get(name), now.get(name)
        if old == new:
            kept[name] = inner
        elif isinstance(inner, dict) and isinstance(old, dict) and isinstance(new, dict):
            left = _unchanged(inner, old, new)
            if left:
                kept[name] = left
    return kept


def _changed(before: Object, now: Object) -> Object:
    found = {}
    for name, new in now.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = _changed(old, new)
            if inner:
                found[name] = inner
        elif old != new:
            found[name] = new
    return found


def _with(live: Any, body: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(live, dict):
        return body
    return {**live, **{name: _with(live.get(name), inner) for name, inner in body.items()}}


def _without(live: Object, part: Object, body: Any, others: tuple[Object, ...]) -> Object:
    kept = dict(live)
    for name, inner in part.items():
        now = body.get(name) if isinstance(body, dict) else None
        theirs = tuple(other[name] for other in others if name in other)
        if isinstance(inner, dict) and isinstance(kept.get(name), dict):
            of_others = tuple(each for each in theirs if isinstance(each, dict))
            kept[name] = _without(kept[name], inner, now, of_others)
            is_gone = not kept[name] and now is None
        else:
            is_gone = now is None
        if is_gone and not theirs:
            kept.pop(name, None)
    return kept


def _refuse_conflicts(live: Object, body: Object, others: Parts) -> None:
    found = [(by, path) for by, part in others.items() for path in _conflicts(live, body, part)]
    if found:
        shown = "; ".join(f'conflict with "{by}": {path}' for by, path in found[:_SHOWN])
        more = "; ..." if len(found) > _SHOWN else ""
        count = f"{len(found)} conflict{'s' if len(found) > 1 else ''}"
        raise ChangedObjectError(f"Apply failed with {count}: {shown}{more}")


def _conflicts(live: Object, body: Object, part: Object, path: str = "") -> list[str]:
    """Fields of a part of `live` that `body` would change."""
    found = []
    for name in body.keys() & part.keys():
        here, there, set_by_them = body[name], live.get(name), part[name]
        if isinstance(here, dict) and isinstance(there, dict) and isinstance(set_by_them, dict):
            found += _conflicts(there, here, set_by_them, f"{path}.{name}")
        elif here not in (there, set_by_them):  # `live` has defaults, too
            found.append(f"{path}.{name}")
    return sorted(found)
