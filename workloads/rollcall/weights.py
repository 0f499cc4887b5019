"""Writes a model's tensors, one after the other, into a file in memory that another process maps.

So there is one copy of the weights, and of tensors that are gathered on the way two at most.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rollcall.errors import RollcallError
from rollcall_protocol.wire.weight_manifest import TensorSpec

if TYPE_CHECKING:
    from rollcall.sending_ranks import SendingRanks

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size

Written = tuple[tuple[TensorSpec, ...], int]  # each tensor's place in the file; all of its bytes
NamedTensors = Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor]


class WeightsWriter:
    """Owns the file. The first tensors that are written say which ones come each time.

    With several `ranks` that send, the file has the parts of this one.
    """

    def __init__(self, ranks: "SendingRanks | None" = None) -> None:
        self._ranks = ranks
        self.descriptor = os.memfd_create("rollcall-weights")
        self._float32_as = torch.float32
        self._layout: tuple[TensorSpec, ...] | None = None
        self._mapping: mmap.mmap | None = None

    def write_float32_as(self, dtype: str) -> None:
        """Write tensors of float32 as this dtype of torch."""
        self._float32_as = getattr(torch, dtype)

    def write(self, named: NamedTensors) -> Written:
        """Each tensor's place in the file, and the length of all, in bytes.

        RollcallError names the tensor that is none, or not as it was the first time. What the
        iterable raises is raised. In both cases the file is not to be used.
        """
        specs: list[TensorSpec] = []
        seen: set[str] = set()
        for name, tensor in self._own(_pairs(named, seen)):
            spec = self._place(name, tensor, end=_end(specs))
            self._check(spec, len(specs))
            self._copy(spec, tensor)
            specs.append(spec)
        if not seen:
            raise RollcallError("publish: no tensors were given; give all weights of the model")
        if self._layout is not None and len(specs) < len(self._layout):
            missing = self._layout[len(specs)].name
            raise RollcallError(
                f"publish: {len(specs)} tensors came, and {len(self._layout)} the first time; the "
                f"first that is missing is {missing!r}; publish the same tensors each time"
            )
        nbytes = _end(specs)
        if self._layout is None:
            os.ftruncate(self.descriptor, max(nbytes, 1))
            self._mapping = mmap.mmap(self.descriptor, max(nbytes, 1))
            self._layout = tuple(specs)
        return self._layout, nbytes

    def close(self) -> None:
        """Give the memory back, as far as the other process has ended."""
        os.close(self.descriptor)

    def _own(self, pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        return _whole(pairs) if self._ranks is None else self._ranks.parts(pairs)

    def _place(self, name: Any, tensor: Any, *, end: int) -> TensorSpec:
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise RollcallError(
                f"publish: {name!r:.80} with {type(tensor).__name__} is no name with a tensor; "
                "give pairs such as those of model.named_parameters(), or a dictionary"
            )
        problem = "is on the meta device, so it has no values" if tensor.is_meta else ""
        if tensor.layout != torch.strided:
            problem = f"has the layout {tensor.layout}, not rows and columns"
        if tensor.is_quantized:
            problem = "is quantized by torch; publish the weights that it is made of"
        if problem:
            raise RollcallError(f"publish: tensor {name!r} {problem}; give its values")
        kind = self._float32_as if tensor.dtype == torch.float32 else tensor.dtype
        nbytes = tensor.numel() * kind.itemsize
        shown = str(kind).removeprefix("torch.")
        return TensorSpec(name, shown, tuple(tensor.shape), end, nbytes)

    def _check(self, spec: TensorSpec, number: int) -> None:
        if self._layout is None:
            return
        if number >= len(self._layout):
            raise RollcallError(
                f"publish: tensor {spec.name!r} was not there the first time; publish the same "
                "tensors each time, or restart the trainer for another model"
            )
        first = self._layout[number]
        if spec != first:
            raise RollcallError(
                f"publish: tensor {spec.name!r} {list(spec.shape)} of {spec.dtype} came where "
                f"{first.name!r} {list(first.shape)} of {first.dtype} came the first time; publish "
                "the same tensors in the same order, or restart the trainer for another model"
            )

    def _copy(self, spec: TensorSpec, tensor: torch.Tensor) -> None:
        if not spec.nbytes:
            return
        if self._mapping is not None:
            _copy_to(self._mapping, spec, tensor, at=spec.offset)
            return
        os.ftruncate(self.descriptor, spec.offset + spec.nbytes)
        start = spec.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        length = spec.offset + spec.nbytes - start
        with mmap.mmap(self.descriptor, length, offset=start) as part:
            _copy_to(part, spec, tensor, at=spec.offset - start)


def _copy_to(mapping: mmap.mmap, spec: TensorSpec, tensor: torch.Tensor, *, at: int) -> None:
    dtype = getattr(torch, spec.dtype)
    flat = torch.frombuffer(mapping, dtype=torch.uint8, offset=at, count=spec.nbytes)
    flat.view(dtype).view(spec.shape).copy_(tensor.detach())


def _pairs(named: Any, seen: set[str]) -> Iterator[tuple[Any, Any]]:
    """Also of a generator; what is no pair comes as a name without a tensor."""
    for pair in named.items() if isinstance(named, Mapping) else named:
        match pair:
            case (str(name), tensor):
                if name in seen:
                    raise RollcallError(f"publish: tensor {name!r} came twice; give each name once")
                seen.add(name)
                yield name, tensor
            case (name, tensor):
                yield name, tensor
            case _:
                yield pair, None


def _whole(pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A part of a sharded model is gathered here; all its ranks have to take part."""
    for name, tensor in pairs:
        gather = getattr(tensor, "full_tensor", None)
        yield name, tensor if gather is None else gather()


def _end(specs: list[TensorSpec]) -> int:
    if not specs:
        return 0
    last = specs[-1]
    return last.offset + -(-last.nbytes // _ALIGNMENT) * _ALIGNMENT
