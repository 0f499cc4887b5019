"""Workers' settings out of a spec: fields of the same name are the same setting."""

from dataclasses import is_dataclass
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rollcall_operator.api.quantity import parse_decimal, parse_quantity
from rollcall_operator.api.rules import Model

T = TypeVar("T")


def from_spec(cls: type[T], spec: Model, **given: Any) -> T:
    """The dataclass `cls` with the values of `spec`, and those `given` in place of some.

    A field has its own name in the spec, or one with a unit: `<name>_seconds`,
    `<name>_milliseconds` (seconds for the worker), and `<name>_size` for `<name>_bytes`. TypeError
    if the spec has none of them.
    """
    kinds = get_type_hints(cls)
    own = {name: _read(spec, name, kinds[name]) for name in kinds.keys() - given.keys()}
    return cls(**own, **given)


def _read(spec: Model, name: str, kind: Any) -> Any:
    names = type(spec).model_fields
    if name in names:
        return converted(getattr(spec, name), kind)
    if (seconds := f"{name}_seconds") in names:
        return float(getattr(spec, seconds))
    if (milliseconds := f"{name}_milliseconds") in names:
        return getattr(spec, milliseconds) / 1000
    if (size := name.removesuffix("_bytes") + "_size") in names:
        return int(parse_quantity(getattr(spec, size)))
    raise TypeError(f"{type(spec).__name__} has no field for {name}; give its value")


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
    if kind is float:
        return float(parse_decimal(value) if isinstance(value, str) else value)
    if get_origin(kind) is tuple:
        return tuple(converted(item, choices[0]) for item in value)
    return value
