"""The lines between a program that calls the library `rollcall` and the process that it starts.

One JSON object a line over a socket that both have. Each request has a number, which its answer
repeats. The weights themselves lie in memory that both map.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from rollcall_protocol.wire.json_codec import CodecError, decode, fields_of, parse, to_json

LONGEST_LINE = 1 << 28
"""Bytes: a manifest of a million tensors, or a prompt of a million tokens, fits well."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Nobody waits for the answer of `cancelled` any more. No answer."""

    cancelled: int


@dataclass(frozen=True, slots=True)
class Done:
    """A request has been done."""

    request: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A request could not be done; `error` says where, what, and what to do."""

    request: int
    error: str


def to_line(message: Any) -> bytes:
    """One JSON object on one line, with the name of the message's dataclass in `type`."""
    return f"{to_json({'type': type(message).__name__, **fields_of(message)})}\n".encode()


def from_line(line: bytes, expected: tuple[type[M], ...]) -> M:
    """The message, one of the `expected` classes. CodecError names the field that is wrong."""
    body = parse(line)
    name = body.pop("type", None) if isinstance(body, dict) else None
    found = next((cls for cls in expected if cls.__name__ == name), None)
    if found is None:
        raise CodecError(f"type: {name!r} is not one of {[cls.__name__ for cls in expected]}")
    return decode(found, body)
