"""What megatron-core, which is made for accelerators, needs replaced to run on a CPU.

It is for tests: the product refuses the engine where there is no accelerator.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator


class _CudaMeansCpu(TorchFunctionMode):
    """Tensors that megatron-core wants on a CUDA device are on the CPU and say otherwise."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        found = func(*args, **kwargs)
        if func is Tensor.type and isinstance(found, str):
            return found.replace("torch.", "torch.cuda.")
        return found


@contextmanager
def on_cpu() -> Iterator[None]:
    """megatron-core asks torch.cuda for its device and for random states, whatever the backend."""
    state = torch.zeros(16, dtype=torch.uint8)  # of a generator that draws nothing
    with ExitStack() as undo:

        def replace(where: Any, **values: Any) -> None:
            undo.enter_context(mock.patch.multiple(where, **values))

        replace(
            torch.cuda,
            current_device=lambda: torch.device("cpu"),
            get_rng_state=lambda *_: state,
            manual_seed=lambda _: None,
            synchronize=lambda *_: None,
            empty_cache=lambda: None,
        )
        undo.enter_context(_CudaMeansCpu())
        from megatron.core.tensor_parallel import random  # noqa: PLC0415 - patched torch is there

        from rollcall_plugins.trainers.megatron.engine import MegatronEngine  # noqa: PLC0415

        replace(
            random,
            _get_cuda_rng_state=lambda *_, **__: state,
            _set_cuda_rng_state=lambda *_, **__: None,
        )
        replace(MegatronEngine, devices=frozenset({"cuda", "cpu"}))
        yield
