"""Has torch.distributed's object collectives send JSON, where torch sends pickles.

With them torch's FSDP1 gathers what it knows of an optimizer's state, and megatron-core its groups
of parameters. A pickle from another rank would run that rank's code here.
"""

from __future__ import annotations

import importlib
import json
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from rollcall_protocol.wire.json_codec import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLAIN = frozenset({type(None), bool, int, float, str})
_FSDP = "torch.distributed.fsdp._optim_utils"
_RECORDS = frozenset({"_OptimStateKey", "_PosDimTensorInfo", "StateInfo"})


@contextmanager
def json_objects() -> Iterator[None]:
    """Whatever the process sends and receives as objects meanwhile is JSON.

    Those are values of JSON, tuples, dictionaries, sizes, dtypes, tensors of one number, and the
    records of FSDP1. TypeError for what else is sent, ValueError for what else is received.
    """
    found = distributed_c10d._pickler, distributed_c10d._unpickler  # noqa: SLF001
    _use(_Writer, _Reader)
    try:
        yield
    finally:
        _use(*found)


def _use(writer: Any, reader: Any) -> None:
    """Torch itself has a name for each, by which others replace them, too."""
    distributed_c10d._pickler = writer  # noqa: SLF001
    distributed_c10d._unpickler = reader  # noqa: SLF001


class _Writer:
    """As pickle.Pickler is used."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def dump(self, value: Any) -> None:
        self._file.write(json.dumps(_encode(value)).encode())


class _Reader:
    """As pickle.Unpickler is used."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def load(self) -> Any:
        found = parse(self._file.read())
        try:
            return _decode(found)
        except (TypeError, AttributeError, RuntimeError) as error:  # too deep, or of no such kind
            raise ValueError(f"another rank sent no object: {error}") from error


def _encode(value: Any) -> Any:
    """Plain values as they are, others as an object of one key, which says what it is."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [_encode(item) for item in value]}
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor) and value.ndim == 0:
        return {"number": [_encode(value.dtype), value.item()]}
    if kind.__module__ == _FSDP and kind.__name__ in _RECORDS:
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
        return {kind.__name__: [_encode(getattr(value, name)) for name in names]}
    raise TypeError(
        f"ranks send each other no {kind.__module__}.{kind.__qualname__} as an object: "
        "send values of JSON, or tensors by the collectives for tensors"
    )


def _decode(data: Any) -> Any:
    if type(data) in _PLAIN:
        return data
    (name, content), *more = data.items()
    if more or name not in _KINDS:
        raise ValueError(f"another rank sent an object of no known kind: {data!s:.200}")
    return _KINDS[name](content)


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")  # noqa: TRY004 - a message's fault
    return found


def _number(content: Any) -> Tensor:
    dtype, number = content
    if type(number) not in {bool, int, float}:
        raise ValueError(f"a tensor of one number, and not of {number!s:.200}")
    return torch.tensor(number, dtype=_decode(dtype))


def _record(name: str) -> Callable[[Any], Any]:
    def record(content: Any) -> Any:
        return getattr(importlib.import_module(_FSDP), name)(*map(_decode, content))

    return record


def _sequence(kind: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    return lambda content: kind([_decode(item) for item in content])


_SEQUENCES: dict[type[Any], str] = {list: "list", tuple: "tuple", torch.Size: "size"}
_KINDS: dict[str, Callable[[Any], Any]] = {
    **{name: _sequence(kind) for kind, name in _SEQUENCES.items()},
    **{name: _record(name) for name in _RECORDS},
    "dict": lambda content: {_decode(key): _decode(item) for key, item in content},
    "dtype": _dtype,
    "number": _number,
}
