"""How prepared weights come to serve: their numbers are copied into the tensors that serve.

Captured graphs read tensors by address, and kernels keep those that they were given. So what serves
stays where it is, as in vLLM's own reload. Each copy is compared bit by bit before it may serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

_GROUPS = ("_parameters", "_buffers")
_OWN = (*_GROUPS, "_modules", "_non_persistent_buffers_set")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PIECE = 1 << 25  # numbers
_PLAIN = (bool, int, float, str, type(None))


class LayoutChangedError(ValueError):
    """Prepared weights do not fit into the memory of those that serve, as graphs want it."""


class WrongCopyError(RuntimeError):
    """What serves is not what was prepared: memory of the device, or its driver, is at fault."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A module that serves, and its shadow. `before`: the shadow's attributes when it was made.

    `has_kernels`: what it keeps beside weights are kernels, which read those that serve.
    """

    serving: nn.Module
    shadow: nn.Module
    before: Mapping[str, Any]
    has_kernels: bool = False


@dataclass(frozen=True, slots=True)
class _Copy:
    prepared: Tensor
    serving: Tensor
    where: str


@dataclass(frozen=True, slots=True)
class _Replacement:
    attributes: dict[str, Any]
    name: str
    value: Any


class WeightCopies:
    """What has to be done for the shadows of `pairs` to serve, in `apply`.

    `captured`: graphs read what serves by address. Then LayoutChangedError if a tensor has another
    layout than the one that serves, or another object is in its place. Without graphs the module
    gets these; on CPUs vLLM keeps weights in objects of its own.
    """

    def __init__(self, pairs: Iterable[Pair], *, captured: bool) -> None:
        self._captured = captured
        self._copies: list[_Copy] = []
        self._by_memory: dict[tuple[Any, ...], _Copy] = {}
        self._replacements: list[_Replacement] = []
        for pair in pairs:
            self._plan(pair)

    @torch.no_grad()
    def apply(self) -> None:
        """Let the prepared weights serve. No request may run meanwhile, nor after an error: what
        serves is of two versions then. Raises WrongCopyError.
        """
        for copy in self._copies:
            copy.serving.copy_(copy.prepared)
        wrong = [copy.where for copy in self._copies if not _equal(copy)]
        if wrong:
            raise WrongCopyError(f"after the update another {', '.join(wrong)} than was prepared")
        for replacement in self._replacements:
            replacement.attributes[replacement.name] = replacement.value

    def _plan(self, pair: Pair) -> None:
        serving, shadow = pair.serving.__dict__, pair.shadow.__dict__
        where = type(pair.serving).__name__
        for group in _GROUPS:
            for name in serving[group].keys() | shadow[group].keys():
                self._add(serving[group], name, shadow[group].get(name), where)
        if pair.has_kernels:
            return
        for name, value in shadow.items():
            if name not in _OWN and pair.before.get(name) is not value:
                self._add(serving, name, value, where)

    def _add(self, serving: dict[str, Any], name: str, prepared: Any, where: str) -> None:
        former: Any = serving.get(name)
        if former is prepared:
            return
        tensors = isinstance(prepared, Tensor) and isinstance(former, Tensor)
        if tensors and _fit(prepared, former):
            if not _same_memory(prepared, former):
                self._copy(prepared, former, f"{name} of {where}")
        elif self._captured and not (isinstance(prepared, _PLAIN) and isinstance(former, _PLAIN)):
            raise LayoutChangedError(
                f"{name} of {where} was {_described(former)} and would be {_described(prepared)}, "
                "which captured graphs do not see; --enforce-eager in engine.config.arguments "
                "does without them"
            )
        else:
            self._replacements.append(_Replacement(serving, name, prepared))

    def _copy(self, prepared: Tensor, serving: Tensor, where: str) -> None:
        copy = self._by_memory.get(_memory(serving))
        if copy is None:
            copy = self._by_memory[_memory(serving)] = _Copy(prepared, serving, where)
            self._copies.append(copy)
        elif not _same_memory(copy.prepared, prepared):
            raise LayoutChangedError(f"{where} was shared by two layers, and is not any more")


def _fit(prepared: Tensor, serving: Tensor) -> bool:
    """Whether the numbers of one can be copied into the other's memory, as they lie there."""
    return _layout(prepared) == _layout(serving)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), *_layout(tensor)


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return _memory(one) == _memory(other)


def _equal(copy: _Copy) -> bool:
    """Bit by bit. A piece at a time: on a device the comparison takes memory."""
    pieces = zip(_bits(copy.serving), _bits(copy.prepared), strict=True)
    return all(torch.equal(serving, prepared) for serving, prepared in pieces)


def _bits(tensor: Tensor) -> tuple[Tensor, ...]:
    """In the order of memory, where the numbers lie without gaps in any order of axes."""
    axes = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    flat = tensor.detach().permute(axes).reshape(-1)
    return tuple(torch.split(flat.view(_INTEGERS[flat.element_size()]), _PIECE))


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "nothing" if value is None else f"a {type(value).__name__}"
    return f"{value.dtype} {tuple(value.shape)} on {value.device}".removeprefix("torch.")
