"""What every engine is compared with: plain PyTorch in one process, a whole padded batch at a time.

The model is that of `transformers`, the optimizer torch's AdamW; nothing of an engine is used.
"""

from __future__ import annotations

import importlib
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.train_engine import BatchResult, OptimizerStep
from rollcall_runtime.train.train_loss import ModelOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import LossFunction

LEARNING_RATE = 1e-3


class Reference:
    """Model, head and optimizer.

    `head` are the weight [1, width] of a value or score head, and its bias [1] if it has one, as an
    engine exported them; none for a language model. `settings`: those of the optimizer count, and
    the precision, where bf16 computes with a bf16 copy of the weights, and tensorParallel, which
    changes nothing but where sums are rounded. `rounds_once`: see `rounding_once`.
    `temperature` divides the logits.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: EngineSettings | None = None,
        learning_rate: float = LEARNING_RATE,
        head: Sequence[Tensor] = (),
        rounds_once: bool = False,
        temperature: float = 1.0,
    ) -> None:
        self._settings = settings or EngineSettings()
        self._base_rate = learning_rate
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._rounds_once = rounds_once
        self._temperature = temperature
        self._head = [nn.Parameter(tensor.clone()) for tensor in head]
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[self._settings.precision]
        self._steps = 0
        self._optimizer = torch.optim.AdamW(
            self._trained(),
            lr=learning_rate,
            betas=(self._settings.beta1, self._settings.beta2),
            eps=self._settings.epsilon,
            weight_decay=self._settings.weight_decay,
        )

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """By Hugging Face's names; a tied tensor once."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @torch.no_grad()
    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Continue with these, by the names of `weights`."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """Of the last `forward_backward`; zeros where there is none."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.model.named_parameters()
        }

    def outputs(self, batch: TrainBatch) -> ModelOutput:
        """Right padding needs no attention mask in a causal model: nothing attends to it."""
        with ExitStack() as rounding:
            if self._rounds_once:
                rounding.enter_context(rounding_once(self.model))
            if self._settings.tensor_parallel > 1:
                parts = self._settings.tensor_parallel
                rounding.enter_context(rounding_parts_of_sums(self.model, parts))
            return self._outputs(batch)

    def _outputs(self, batch: TrainBatch) -> ModelOutput:
        weights = {n: p.to(self._dtype) for n, p in self.model.named_parameters()}
        found = functional_call(
            self.model, weights, (batch.tokens,), {"output_hidden_states": bool(self._head)}
        )
        if self._head:
            values = nn.functional.linear(found.hidden_states[-1].float(), *self._head)[..., 0]
            last = (batch.lengths - 1).clamp(min=0)
            return ModelOutput(values=values, scores=values[torch.arange(batch.rows), last])
        logprobs = (found.logits.float() / self._temperature).log_softmax(-1)
        return ModelOutput(
            logprobs=logprobs.gather(-1, batch.targets[..., None])[..., 0],
            entropy=-(logprobs.exp() * logprobs).sum(-1),
        )

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        """Add the gradients to those there are."""
        sums = loss(self.outputs(batch), batch)
        denominator = max(float(loss.denominator(batch)), 1.0)
        (sums.loss / denominator).backward()  # type: ignore[no-untyped-call]
        metrics = {name: float(total / count) for name, (total, count) in sums.metrics.items()}
        maxima = {name: float(value) for name, value in sums.maxima.items()}
        return BatchResult(
            loss=float(sums.loss.detach()) / denominator,
            denominator=denominator,
            tokens=int(batch.mask.sum()),
            metrics=metrics | maxima,
        )

    def optimizer_step(self) -> OptimizerStep:
        """Clip, step, and forget the gradients."""
        rate = self._rate()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = nn.utils.clip_grad_norm_(self._trained(), self._settings.max_gradient_norm)
        self._optimizer.step()
        self._steps += 1
        return OptimizerStep(float(norm), rate)

    def zero_grad(self) -> None:
        """Forget the gradients; `optimizer_step` leaves them to be read."""
        self._optimizer.zero_grad()

    def _trained(self) -> list[nn.Parameter]:
        return [*self.model.parameters(), *self._head]

    def _rate(self) -> float:
        """The learning rate of the next step, as EngineSettings describes the schedule."""
        settings = self._settings
        if self._steps < settings.warmup_steps:
            return self._base_rate * (self._steps + 1) / settings.warmup_steps
        if settings.schedule == "constant":
            return self._base_rate
        done = min((self._steps - settings.warmup_steps) / settings.decay_steps, 1.0)
        left = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        lowest = settings.min_learning_rate
        return self._base_rate * (lowest + (1 - lowest) * left)


@contextmanager
def rounding_once(model: Any) -> Iterator[None]:
    """Norms and rotations of queries and keys compute in float32, and round what they return.

    transformers rounds a norm before it applies the weight, and the factors and products of a
    rotation. In bf16 both are right, and about as far from each other as from float32.
    """
    module = importlib.import_module(type(model).__module__)
    names = type(model).__name__.removesuffix("ForCausalLM")
    norm, rotary = getattr(module, f"{names}RMSNorm"), getattr(module, f"{names}RotaryEmbedding")
    rotate, factors = module.apply_rotary_pos_emb, rotary.forward

    def normalized(self: Any, hidden: Tensor) -> Tensor:
        exact = hidden.float()
        scale = exact.square().mean(-1, keepdim=True).add(self.variance_epsilon).rsqrt()
        found: Tensor = self.weight.float() * (exact * scale)
        return found.to(hidden.dtype)

    def exact_factors(self: Any, hidden: Tensor, position_ids: Tensor) -> Any:
        return factors(self, hidden.float(), position_ids)

    def rotated(query: Tensor, key: Tensor, *factors: Tensor) -> list[Tensor]:
        found = rotate(query.float(), key.float(), *factors)
        return [tensor.to(query.dtype) for tensor in found]

    with (
        mock.patch.object(norm, "forward", normalized),
        mock.patch.object(rotary, "forward", exact_factors),
        mock.patch.object(module, "apply_rotary_pos_emb", rotated),
    ):
        yield


@contextmanager
def rounding_parts_of_sums(model: nn.Module, parts: int) -> Iterator[None]:
    """Matrix products are added up from `parts` that are rounded, as tensor-parallel ranks do it.

    Those of o_proj and down_proj in the forward pass, of the other layers in the backward pass.
    """

    def product(layer: nn.Linear, hidden: Tensor) -> Tensor:
        across = 1 if name_of[layer] in {"o_proj", "down_proj"} else 0
        weights = layer.weight.chunk(parts, across)
        if across == 0:
            return torch.cat([nn.functional.linear(hidden, weight) for weight in weights], -1)
        shares = zip(hidden.chunk(parts, -1), weights, strict=True)
        found = [nn.functional.linear(share, weight) for share, weight in shares]
        return torch.stack(found).sum(0)

    name_of = {
        layer: name.rpartition(".")[2]
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    }
    with mock.patch.object(nn.Linear, "forward", product):
        yield
