"""Frozen dataclasses to JSON and back, strictly: no pickle and no coercion of types.

`decode` refuses unknown fields, missing fields and wrong types, and names the path of the field,
so that a message of another release fails instead of losing fields. Integers have 64 bits, and
strings MAX_TEXT characters: a sender's number must not become one that is slow or does not fit.

A decoder is built once for each type: a manifest has thousands of tensors.
"""

import dataclasses
import json
import types
import typing
from array import array
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeVar

from rollcall_protocol.wire.printable_text import one_line

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]  # of a plain JSON value and the path to it

MIN_INT, MAX_INT = -(2**63), 2**63 - 1
MAX_TEXT = 2**20  # characters of one string
MAX_ERROR = 500  # characters; a message's own words stand in its error
_PLAIN = frozenset({int, float, str})  # samples are long tuples of these: no call for each item


class CodecError(ValueError):
    """A JSON value does not fit the type; the message starts with the field's path.

    The message is printable: JSON may hold half of a surrogate pair, which cannot be encoded.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message[:MAX_ERROR]))


# --- encoding ------------------------------------------------------------------------------------


def to_json(value: Any) -> str:
    """A dataclass (nested, with tuples, dicts, enums) as JSON on one line."""
    return json.dumps(value, separators=(",", ":"), default=fields_of)


def to_typed_json(message: Any) -> str:
    """A dataclass as JSON on one line, with the name of its class in `type`."""
    return to_json({"type": type(message).__name__, **fields_of(message)})


def encode(value: Any) -> Any:
    """A dataclass (nested, with tuples, dicts, enums) as plain JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: encode(item) for name, item in fields_of(value).items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) <= _PLAIN:
            return list(value)
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance. TypeError for anything else."""
    cls = type(value)
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(field.name for field in dataclasses.fields(cls))
    return {name: getattr(value, name) for name in names}


_NAMES: dict[type[Any], tuple[str, ...]] = {}


# --- decoding ------------------------------------------------------------------------------------


def parse(text: str | bytes) -> Any:
    """Plain JSON values. CodecError for what is no JSON in UTF-8, or nested too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from error


def from_typed_json(
    text: str | bytes, allowed: tuple[type[T], ...]
) -> tuple[type[T], dict[str, Any]]:
    """The class that `type` names, one of those allowed, and the other fields, not yet decoded.

    CodecError for another name, and as `parse`.
    """
    body = parse(text)
    name = body.pop("type", None) if isinstance(body, dict) else None
    cls = next((each for each in allowed if each.__name__ == name), None)
    if cls is None:
        raise CodecError(f"type: {name!r} is not one of {[each.__name__ for each in allowed]}")
    return cls, body


def decode(cls: type[T], data: Any, *, path: str = "") -> T:
    """Build `cls` from plain JSON values. CodecError names the field that is wrong."""
    return typing.cast("T", _decoder(cls)(data, path or cls.__name__))


def decode_changes(cls: type[T], data: Any, *, before: Any, value: T) -> T:
    """As `decode`, where `before` was decoded to `value`: only fields that differ are decoded.

    What equals what was checked before is not checked again, such as true in place of 1; its value
    is the one that was.
    """
    if not isinstance(data, dict) or data.keys() != before.keys():
        return decode(cls, data)
    kinds = _KINDS.get(cls)
    if kinds is None:
        kinds = _KINDS[cls] = typing.get_type_hints(cls)
    changes = {
        name: _decoder(kinds[name])(item, f"{cls.__name__}.{name}")
        for name, item in data.items()
        if item != before[name]
    }
    try:
        return dataclasses.replace(value, **changes)  # type: ignore[type-var]
    except ValueError as error:
        raise CodecError(f"{cls.__name__}: {error}") from error


_KINDS: dict[type[Any], dict[str, Any]] = {}
_DECODERS: dict[Any, Decoder] = {}


def _decoder(kind: Any) -> Decoder:
    found = _DECODERS.get(kind)
    if found is None:
        found = _DECODERS[kind] = _build(kind)
    return found


def _build(kind: Any) -> Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data, _: data
    if origin in {typing.Union, types.UnionType}:
        return _optional(arguments)
    if origin is tuple:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        return _sequence(arguments[0]) if repeated else _fixed(arguments)
    if origin is dict:
        return _mapping(arguments[1])
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return _number if kind is float else _scalar(kind)


def _scalar(kind: type[Any]) -> Decoder:
    def scalar(data: Any, path: str) -> Any:
        if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
            raise _wrong_type(path, kind.__name__, data)
        if (kind is int or kind is str) and not _fits(data):
            raise _too_large(path, data)
        return data

    return scalar


def _number(data: Any, path: str) -> float:
    if not isinstance(data, (int, float)) or isinstance(data, bool):
        raise _wrong_type(path, "float", data)
    if isinstance(data, int) and not _fits(data):
        raise _too_large(path, data)
    return float(data)


def _enum(kind: type[Enum]) -> Decoder:
    def enum(data: Any, path: str) -> Enum:
        try:
            return kind(data)
        except ValueError as error:
            allowed = ", ".join(str(member.value) for member in kind)
            raise CodecError(f"{path}: {data!r} is not one of {allowed}") from error

    return enum


def _optional(options: tuple[Any, ...]) -> Decoder:
    kinds = [option for option in options if option is not types.NoneType]
    if len(kinds) != 1:
        raise TypeError(f"only optional types are supported, not {options}")
    required = _decoder(kinds[0])
    return lambda data, path: None if data is None else required(data, path)


def _sequence(kind: Any) -> Decoder:
    item, plain = _decoder(kind), {kind} & _PLAIN

    def sequence(data: Any, path: str) -> tuple[Any, ...]:
        _check_list(data, path)
        if plain and set(map(type, data)) <= plain and _all_fit(data, kind):
            return tuple(data)
        return tuple([item(value, f"{path}[{i}]") for i, value in enumerate(data)])

    return sequence


def _fixed(kinds: tuple[Any, ...]) -> Decoder:
    items = [_decoder(kind) for kind in kinds]

    def fixed(data: Any, path: str) -> tuple[Any, ...]:
        _check_list(data, path)
        if len(data) != len(items):
            raise CodecError(f"{path}: expected {len(items)} items, got {len(data)}")
        pairs = zip(items, data, strict=True)
        return tuple([item(value, f"{path}[{i}]") for i, (item, value) in enumerate(pairs)])

    return fixed


def _mapping(kind: Any) -> Decoder:
    item = _decoder(kind)

    def mapping(data: Any, path: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise _wrong_type(path, "an object", data)
        return {str(key): item(value, f"{path}.{key}") for key, value in data.items()}

    return mapping


def _record(cls: type[Any]) -> Decoder:
    hints, fields = typing.get_type_hints(cls), dataclasses.fields(cls)
    table = [(field.name, _decoder(hints[field.name]), _has_default(field)) for field in fields]
    exact = {name: kind for name, kind in hints.items() if kind in {int, str, bool}}
    known = {field.name: None for field in fields}  # in their order, for the message

    def record(data: Any, path: str) -> Any:
        if not isinstance(data, dict):
            raise _wrong_type(path, "an object", data)
        if not data.keys() <= known.keys():
            unknown = min(data.keys() - known.keys())
            raise CodecError(f"{path}.{unknown}: unknown field; known are {', '.join(known)}")
        values = {}
        for name, field, optional in table:
            if name in data:
                value = data[name]
                plain = type(value) is exact.get(name) and _fits(value)
                values[name] = value if plain else field(value, f"{path}.{name}")
            elif not optional:
                raise CodecError(f"{path}.{name}: missing")
        try:
            return cls(**values)
        except ValueError as error:
            raise CodecError(f"{path}: {error}") from error

    return record


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _check_list(data: Any, path: str) -> None:
    if not isinstance(data, (list, tuple)):
        raise _wrong_type(path, "a list", data)


def _fits(value: int | str) -> bool:
    """Whether an integer has 64 bits, or a string MAX_TEXT characters."""
    return len(value) <= MAX_TEXT if isinstance(value, str) else MIN_INT <= value <= MAX_INT


def _all_fit(values: Sequence[Any], kind: Any) -> bool:
    """Of a list of `kind` alone; quick for many numbers."""
    if kind is not int:
        return kind is float or all(map(_fits, values))
    try:
        array("q", values)
    except OverflowError:
        return False
    return True


def _too_large(path: str, data: int | str) -> CodecError:
    if isinstance(data, str):
        return CodecError(f"{path}: {len(data)} characters, and at most {MAX_TEXT} are allowed")
    return CodecError(f"{path}: an integer of {data.bit_length()} bits, and at most 63 are allowed")


def _wrong_type(path: str, expected: str, data: Any) -> CodecError:
    return CodecError(f"{path}: expected {expected}, got {type(data).__name__}")
