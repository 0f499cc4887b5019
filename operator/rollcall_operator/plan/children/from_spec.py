"""Workers' settings out of a spec: fields of the same name are the same setting."""

from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rollcall_operator.api.quantity import parse_decimal, parse_quantity
from rollcall_operator.api.rules import Model

T = TypeVar("T")

_kinds_of = cache(get_type_hints)  # a job's plan reads some twenty classes, several times


def from_spec(cls: type[T], spec: Model, **given: Any) -> T:
    """The dataclass `cls` with the values of `spec`, and those `given` in place of some.

    A field has its own name in the spec, or one with a unit: `<name>_seconds`,
    `<name>_milliseconds` (seconds for the worker), and `<name>_size` for `<name>_bytes`. TypeError
    if the spec has none of them.
    """
    kinds = _kinds_of(cls)  # type: ignore[arg-type]
    own = {name: _read(spec, name, kinds[name]) for name in kinds.keys() - given.keys()}
    return cls(**own, **given)


def _read(spec: Model, name: str, kind: Any) -> Any:
    own = _name_in_spec(type(spec), name)
    value = getattr(spec, own)
    if own == name:
        return converted(value, kind)
    if own.endswith("_seconds"):
        return float(value)
    return value / 1000 if own.endswith("_milliseconds") else int(parse_quantity(value))


@cache
def _name_in_spec(spec: type[Model], name: str) -> str:
    size = f"{name.removesuffix('_bytes')}_size"
    for own in (name, f"{name}_seconds", f"{name}_milliseconds", size):
        if own in spec.model_fields:
            return own
    raise TypeError(f"{spec.__name__} has no field for {name}; give its value")


def converted(value: Any, kind: Any) -> Any:
    """A spec's value as the worker's `kind`: decimal strings are floats, and lists are tuples.

    What the spec leaves unset is None where the kind has it, and otherwise 0 or empty.
    """
    choices = get_args(kind)
    if NoneType in choices:
        (kind,) = (choice for choice in choices if choice is not NoneType)
        return None if value is None else converted(value, kind)
    if value is None:
        return (get_origin(kind) or kind)()
    if is_dataclass(kind):
        return from_spec(kind, value)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if kind is float:
        return float(parse_decimal(value) if isinstance(value, str) else value)
    if get_origin(kind) is tuple:
        return tuple(converted(item, choices[0]) for item in value)
    return value
