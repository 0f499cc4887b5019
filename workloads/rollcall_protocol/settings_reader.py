"""Reads settings that a manifest leaves free-form (camelCase keys) into a dataclass.

The operator refuses wrong settings of built-in engines before a pod starts, and workers refuse all
others, by the same function.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class SettingError(ValueError):
    """`key` is the setting that is wrong, empty if several are wrong together."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


def camel_case(name: str) -> str:
    """The name of a setting as a manifest has it."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def read_settings(cls: type[T], config: Mapping[str, Any]) -> T:
    """Build the dataclass `cls` from camelCase keys. SettingError names the wrong key.

    Fields are bool, int, str, or float (also given as a decimal string: a spec has no floats).
    `cls` checks ranges in `__post_init__` by ValueError, which becomes a SettingError without key.
    """
    known_settings = _settings_of(cls)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key not in known_settings:
            known = ", ".join(sorted(known_settings)) or "none"
            raise SettingError(key, f"unknown setting; known: {known}")
        name, kind = known_settings[key]
        values[name] = _convert(value, kind, key)
    try:
        return cls(**values)
    except ValueError as error:
        raise SettingError("", str(error)) from error


@cache
def _settings_of(cls: type[Any]) -> dict[str, tuple[str, Any]]:
    """The field and its type by the key that a manifest has."""
    hints = get_type_hints(cls)
    return {camel_case(item.name): (item.name, hints[item.name]) for item in fields(cls)}


def _convert(value: Any, kind: Any, key: str) -> Any:
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError as error:
            raise SettingError(key, f"{value!r} is not a decimal number") from error
    if type(value) is not kind:
        raise SettingError(key, f"{value!r} is not of type {kind.__name__}")
    return value
