"""The lines between a program that calls the library `rollcall` and the process that it starts.

One JSON object a line over a socket that both have. Each request has a number, which its answer
repeats. The weights themselves lie in memory that both map.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from rollcall_protocol.wire.json_codec import decode, from_typed_json, to_typed_json

LONGEST_LINE = 1 << 28
"""Bytes: a manifest of a million tensors, or a prompt of a million tokens, fits well."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The program waits no more for the answer of request `cancelled`. No answer."""

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
    return f"{to_typed_json(message)}\n".encode()


def from_line(line: bytes, expected: tuple[type[M], ...]) -> M:
    """The message, one of the `expected` classes. CodecError names the field that is wrong."""
    return decode(*from_typed_json(line, expected))
