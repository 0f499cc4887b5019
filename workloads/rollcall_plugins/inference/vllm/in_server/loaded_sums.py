"""Whether vLLM's loaders put into a model what they were given, whatever they fuse and split.

The sum of all numbers' bits, taken as integers, is the same in any order and any shape, and zeros
that pad a tensor add nothing. So it is that of the tensors that came, unless a loader left one out,
loaded one twice, or changed one. Where a model's loaders change numbers on purpose the sums differ
from the first version on, and say nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from torch import Tensor, nn

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CACHED = 2**18  # numbers that a core's cache holds as 64 bits each


class LoadedSums:
    """Of one load, of a model whose weights are numbers of `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._given: Tensor | int = 0  # on the weights' device, once there are any
        self._loaded: Tensor | int = 0
        self._counted: set[int] = set()  # modules, by identity
        self._comparable = True

    def given(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same tensors, which are counted as the loaders take them."""
        for name, tensor in weights:
            self._given = self._given + _sum(tensor.to(self._dtype))
            yield name, tensor

    def count(self, module: nn.Module) -> None:
        """Count what was loaded into a module, before it is laid out for kernels; once."""
        if id(module) in self._counted or isinstance(module, AttentionLayerBase):
            return
        self._counted.add(id(module))
        for parameter in module._parameters.values():  # noqa: SLF001 - its own alone
            if parameter is not None:
                self._comparable &= parameter.dtype == self._dtype
                self._loaded = self._loaded + _sum(parameter.detach())

    def agree(self, modules: Collection[nn.Module]) -> bool:
        """Whether these modules, of which some are counted, got what was given; waits for it."""
        for module in modules:
            self.count(module)
        return self._comparable and int(self._given) == int(self._loaded)

    def before(self, method: Any) -> Any:
        """`method` of quantization, which lays out a module's weights: they are counted before."""
        lay_out = type(method).process_weights_after_loading

        def process_weights_after_loading(layer: Any) -> None:
            self.count(layer)
            lay_out(layer.quant_method, layer)  # which is `method`: no circle, see `free`

        method.process_weights_after_loading = process_weights_after_loading
        return method


def _sum(tensor: Tensor) -> Tensor:
    bits = tensor.contiguous().view(_INTEGERS[tensor.element_size()]).reshape(-1)
    if bits.device.type != "cpu":
        return bits.sum(dtype=torch.int64)
    # On CPUs torch reads 1 GB/s if it adds up other integers than it is given; so some 10.
    parts = [part.to(torch.int64).sum() for part in torch.split(bits, _CACHED)]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.int64)
