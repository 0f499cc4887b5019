"""Runs micro-batches through pipeline stages, of which each holds some of the model's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_pipelining_without_interleaving,
)
from megatron.core.utils import get_attr_wrapped_model, get_model_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from rollcall_plugins.trainers.megatron.shared_groups import ParallelGroups


class Pipeline:
    """`model` is the part of a GPTModel that this rank's stage holds, with or without its wrapper.

    All ranks of a pipeline are given the same micro-batches: int64 tokens [rows, length].
    """

    def __init__(self, model: nn.Module, groups: ParallelGroups) -> None:
        self._model = model
        self._groups = groups
        self._first = groups.stage == 0
        self._last = groups.stage == groups.stages - 1

    def forward(self, tokens: Tensor) -> Tensor | None:
        """Collective. The output of the last stage, [rows, length, ...]; None on the others."""
        if self._groups.stages == 1:
            return _compute(self._model, tokens)
        between = P2PCommunicator(self._groups.pipeline_group, get_model_config(self._model))
        received = between.recv_forward(self._shape(tokens), self._first)
        get_attr_wrapped_model(self._model, "set_input_tensor")(received)
        output = _compute(self._model, tokens)
        between.send_forward(output, self._last)
        return output if self._last else None

    def forward_backward(
        self, microbatches: Sequence[Tensor], loss: Callable[[int, Tensor], Tensor]
    ) -> None:
        """Collective. Megatron's schedule of one forward and one backward pass in turn (1F1B).

        `loss` gives the loss of the micro-batch with this number from the last stage's output.
        """

        def step(numbers: Iterator[int], model: nn.Module) -> tuple[Tensor, Any]:
            number = next(numbers)
            count = torch.tensor(1, dtype=torch.int)
            return _compute(model, microbatches[number]), lambda output: (
                loss(number, output),
                count,
                None,
            )

        length, rows, _ = self._shape(microbatches[0])
        forward_backward_pipelining_without_interleaving(
            forward_step_func=step,
            data_iterator=iter(range(len(microbatches))),
            model=self._model,
            num_microbatches=len(microbatches),
            seq_length=length,
            micro_batch_size=rows,
        )

    def _shape(self, tokens: Tensor) -> tuple[int, int, int]:
        """Of what goes from stage to stage for the first micro-batch; later ones say their own."""
        rows, length = tokens.shape
        return length, rows, get_model_config(self._model).hidden_size


def _compute(model: nn.Module, tokens: Tensor) -> Tensor:
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    # Padding is on the right, where no position before it looks: causal attention needs no mask.
    output: Tensor = model(tokens, positions, None)
    return output
