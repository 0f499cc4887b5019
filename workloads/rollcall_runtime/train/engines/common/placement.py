"""Moves an engine's tensors between the worker's device and host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

Place = Literal["worker", "host"]
Part = Literal["model", "optimizer", "gradients"]


class StatePlacement:
    """Where the parts of an engine's state are. On a CPU both places are the same."""

    def __init__(self, worker: torch.device) -> None:
        self._worker = worker
        self._in_host_memory: set[Part] = set()
        self._gradients: dict[nn.Parameter, Tensor] = {}  # those in host memory

    def move(
        self,
        place: Place,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        gradients: Iterable[nn.Parameter] | None = None,
    ) -> None:
        """Move the parts that are given; `gradients` are those of these parameters."""
        if self._worker.type == "cpu":
            return
        device = self._worker if place == "worker" else torch.device("cpu")
        if gradients is not None and place == "host":
            self._take_gradients(gradients)
            self._note("gradients", place)
        if model is not None:
            model.to(device)
            self._note("model", place)
        if optimizer is not None:
            _move_optimizer(optimizer, device)
            self._note("optimizer", place)
        if gradients is not None and place == "worker":
            for parameter, gradient in self._gradients.items():
                parameter.grad = _moved(gradient, device)
            self._gradients = {}
            self._note("gradients", place)

    def forget_gradients(self) -> None:
        """Drop those in host memory."""
        self._gradients = {}
        self._note("gradients", "worker")

    def _take_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        # torch keeps a gradient on its parameter's device, so it cannot stay in `grad`.
        for parameter in parameters:
            if parameter.grad is not None:
                self._gradients[parameter] = _moved(parameter.grad, torch.device("cpu"))
                parameter.grad = None

    def expect_on_worker(self, *parts: Part) -> None:
        """RuntimeError if one of these parts is in host memory."""
        for part in parts:
            if part in self._in_host_memory:
                raise RuntimeError(f"the engine's {part} is in host memory; move it back first")

    def _note(self, part: Part, place: Place) -> None:
        if place == "host":
            self._in_host_memory.add(part)
        else:
            self._in_host_memory.discard(part)


def _move_optimizer(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim:  # AdamW's step counts on the CPU
                state[name] = _moved(value, device)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, where a DTensor keeps its place in the mesh."""
    if not isinstance(tensor, DTensor):
        return tensor.to(device)
    local = tensor.to_local().to(device)
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
