"""Whether a child has to be applied: its fields are compared with those of the live object."""

import hashlib
import json
from decimal import Decimal
from typing import Any

from rollcall_operator.api.quantity import parse_quantity
from rollcall_operator.plan.model import NETWORK_POLICY, Manifest

_QUANTITIES = {"limits", "requests", "capacity", "hard"}
_QUANTITY_FIELDS = {"sizeLimit", "divisor"}
_NOTHING: tuple[Any, ...] = ([], None)  # as a value in a NetworkPolicy


def key(manifest: Manifest) -> str:
    """A child's name in messages and maps, such as "StatefulSet/reverse-trainer"."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def digest(manifest: Manifest) -> str:
    """Digest of what an apply would send; the resourceVersion it is conditional on is left out."""
    body = dict(manifest)
    body["metadata"] = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def differs(desired: Any, live: Any) -> bool:
    """True when a field of `desired` is missing in `live` or has another value.

    Fields that only `live` has are the server's defaults or have another owner. The API server
    drops null, and on many fields false, 0 and empty values: these are met by an absent field. It
    also writes quantities its own way ("0.5" becomes "500m"): these are compared by amount. In the
    rules of a NetworkPolicy a field that was added means another rule, so these are compared whole.
    """
    if isinstance(desired, dict) and desired.get("kind") == NETWORK_POLICY:
        here = live["spec"]
        for name, value in desired["spec"].items():
            if value not in _NOTHING and not _same_rules(value, here.get(name)):
                return True
    return _differs(desired, live, quantity=False)


def _differs(desired: Any, live: Any, *, quantity: bool) -> bool:
    if desired == live or desired is None or (live is None and not desired):
        return False
    if isinstance(desired, dict):
        return not isinstance(live, dict) or any(
            _differs(value, live.get(name), quantity=quantity or name in _QUANTITY_FIELDS)
            if name not in _QUANTITIES
            else _differs(value, live.get(name), quantity=True)
            for name, value in desired.items()
        )
    if isinstance(desired, list):
        return (
            not isinstance(live, list)
            or len(desired) != len(live)
            or any(_differs(a, b, quantity=False) for a, b in zip(desired, live, strict=True))
        )
    if quantity and not isinstance(desired, bool):
        return _amount(desired) != _amount(live)
    return bool(desired != live)


def _same_rules(one: Any, other: Any) -> bool:
    return bool(one == other or _rules(one) == _rules(other))


def _rules(value: Any) -> Any:
    """A part of a NetworkPolicy without what the API server drops: null, empty lists, no labels."""
    if isinstance(value, list):
        return [_rules(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _rules(inner)
        for key, inner in value.items()
        if inner not in _NOTHING and not (key == "matchLabels" and not inner)
    }


def _amount(value: Any) -> Decimal | str:
    try:
        return parse_quantity(str(value))
    except ValueError:
        return str(value)
