"""Frozen dataclasses to JSON and back, strictly: no pickle and no coercion of types.

`decode` refuses unknown fields, missing fields and wrong types, and names the path of the field,
so that a message of another release fails instead of losing fields.
"""

import dataclasses
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

_PLAIN = frozenset({int, float, str})  # samples are long tuples of these: no detour for each item


class CodecError(ValueError):
    """A JSON value does not fit the type; the message starts with the field's path."""


def encode(value: Any) -> Any:
    """Turn a dataclass (nested, with tuples, dicts, enums) into plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) <= _PLAIN:
            return list(value)
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(cls: type[T], data: Any, *, path: str = "") -> T:
    """Build `cls` from plain JSON values; raises CodecError that names the field."""
    return typing.cast("T", _decode(cls, data, path or cls.__name__))


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in {typing.Union, types.UnionType}:
        return _decode_optional(typing.get_args(kind), data, path)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), data, path)
    if origin is dict:
        if not isinstance(data, dict):
            raise CodecError(f"{path}: expected an object, got {type(data).__name__}")
        item = typing.get_args(kind)[1]
        return {str(key): _decode(item, value, f"{path}.{key}") for key, value in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast("type[Any]", kind), data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError as error:
            allowed = ", ".join(str(member.value) for member in kind)
            raise CodecError(f"{path}: {data!r} is not one of {allowed}") from error
    return _decode_scalar(kind, data, path)


def _decode_scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise CodecError(f"{path}: expected {kind.__name__}, got {type(data).__name__}")
    return data


def _decode_optional(options: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in options:
        return None
    kinds = [option for option in options if option is not type(None)]
    if len(kinds) != 1:
        raise CodecError(f"{path}: only optional types are supported, not {options}")
    return _decode(kinds[0], data, path)


def _decode_tuple(items: tuple[Any, ...], data: Any, path: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise CodecError(f"{path}: expected a list, got {type(data).__name__}")
    if len(items) == 2 and items[1] is Ellipsis:
        if items[0] in _PLAIN and set(map(type, data)) <= {items[0]}:
            return tuple(data)
        return tuple(_decode(items[0], value, f"{path}[{i}]") for i, value in enumerate(data))
    if len(items) != len(data):
        raise CodecError(f"{path}: expected {len(items)} items, got {len(data)}")
    pairs = zip(items, data, strict=True)
    return tuple(_decode(item, value, f"{path}[{i}]") for i, (item, value) in enumerate(pairs))


def _decode_dataclass(cls: type[Any], data: Any, path: str) -> Any:
    if not isinstance(data, dict):
        raise CodecError(f"{path}: expected an object, got {type(data).__name__}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise CodecError(f"{path}.{unknown[0]}: unknown field; known are {', '.join(fields)}")
    hints = _hints(cls)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise CodecError(f"{path}.{name}: missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise CodecError(f"{path}: {error}") from error
