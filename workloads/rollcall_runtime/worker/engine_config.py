"""Reads an engine's own `config` (free-form in the RLJob) into that engine's dataclass."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from rollcall_runtime.worker.errors import SpecError

T = TypeVar("T")


def read_settings(cls: type[T], config: Mapping[str, Any], *, field: str) -> T:
    """Build the dataclass `cls` from camelCase keys; SpecError names the wrong key under `field`.

    Fields are bool, int, str, or float (also given as a decimal string: a spec has no floats).
    `cls` checks ranges in `__post_init__` by ValueError, which becomes a SpecError.
    """
    hints = get_type_hints(cls)
    names = {_camel(item.name): item.name for item in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in config.items():
        name = names.get(key)
        if name is None:
            known = ", ".join(sorted(names)) or "none"
            raise SpecError(f"{field}.{key}", f"unknown setting; known: {known}")
        values[name] = _convert(value, hints[name], field=f"{field}.{key}")
    try:
        return cls(**values)
    except ValueError as error:
        raise SpecError(field, str(error)) from error


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _convert(value: Any, kind: Any, *, field: str) -> Any:
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise SpecError(field, f"{value!r} is not a decimal number") from error
    if type(value) is not kind:
        raise SpecError(field, f"{value!r} is not of type {kind.__name__}")
    return value
