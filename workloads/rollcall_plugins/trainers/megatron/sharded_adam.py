"""megatron-core's mixed-precision Adam around a model, and its state by parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig as AdamConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes

from rollcall_plugins.trainers.megatron.hf_weights import HfWeights, trained_tensor

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel
    from torch import Tensor, nn

    from rollcall_protocol.train_settings import EngineSettings

MOMENTS = ("exp_avg", "exp_avg_sq")
_NORM_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ has the same


class ShardedAdam:
    """The gradients of a model, summed over ranks, and the AdamW steps that use them.

    `model` is what the forward pass has to call. Weight decay applies to all parameters, as torch's
    AdamW does and Megatron by default does not.
    """

    def __init__(self, model: GPTModel, weights: HfWeights, settings: EngineSettings) -> None:
        _mark_divided_parameters(weights)
        self.model = DistributedDataParallel(
            config=model.config,
            ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
            module=model,
        )
        mixed = settings.precision == "bf16"
        self._optimizer = get_megatron_optimizer(
            AdamConfig(
                optimizer="adam",
                lr=0.0,  # each step brings its own
                weight_decay=settings.weight_decay,
                adam_beta1=settings.beta1,
                adam_beta2=settings.beta2,
                adam_eps=settings.epsilon,
                bf16=mixed,
                params_dtype=torch.bfloat16 if mixed else torch.float32,
            ),
            [self.model],
            config_overrides={},  # None would leave norms and biases without weight decay
            use_gloo_process_groups=False,
        )
        self._parameters = [parameter for parameter, _ in weights.parameters()]
        self._kept_gradients: list[Tensor] = []

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What holds the parameters' groups, with their learning rate."""
        found: torch.optim.Optimizer = self._optimizer.optimizer
        return found

    @torch.no_grad()
    def reduce_and_clip(self, max_norm: float) -> float:
        """Collective. Sum the gradients over all ranks and scale the whole down to `max_norm`.

        Returns the norm before. Megatron's own clipping accepts CUDA devices alone.
        """
        finalize_model_grads([self.model])
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        scale = max_norm / (norm + _NORM_EPSILON)
        if scale < 1:
            torch._foreach_mul_([_gradient(p) for p in self._parameters], scale)
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients, which are reduced."""
        self._optimizer.step_with_ready_grads()

    def zero_gradients(self) -> None:
        """Forget the gradients, also those in host memory."""
        if self._kept_gradients:
            self._kept_gradients = [torch.zeros_like(kept) for kept in self._kept_gradients]
            return
        self.model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def moment(self, parameter: nn.Parameter, name: str) -> Tensor:
        """The running average `name`, of MOMENTS, of the gradients; zeros before the first step."""
        found: Tensor = self._state(parameter)[name]
        return found

    def set_steps(self, steps: int) -> None:
        """How many steps the moments have behind them, for the correction of their bias."""
        if isinstance(self._optimizer.optimizer, torch.optim.AdamW):
            for parameter in self._parameters:
                self._state(parameter)["step"].fill_(steps)
            return
        # Transformer Engine's and apex's FusedAdam count by group.
        for group in self._optimizer.param_groups:
            group["step"] = steps

    def move_state(self, device: torch.device) -> None:
        """Move moments, and float32 copies of bf16 parameters, to `device`."""
        for parameter in self._parameters:
            trained = trained_tensor(parameter)
            if trained is not parameter:
                trained.data = trained.data.to(device)
            state = self.optimizer.state[trained]
            state |= {name: state[name].to(device) for name in MOMENTS if name in state}

    def move_gradients(self, *, keep: bool) -> None:
        """`keep`: copy the gradients to host memory and free theirs; else bring them back.

        Parameters look at one buffer of gradients, which stays where it is, with or without memory.
        """
        buffers = [buffer.grad_data for buffer in self.model.buffers]
        if keep:
            self._kept_gradients = [buffer.to("cpu", copy=True) for buffer in buffers]
            for buffer in buffers:
                buffer.untyped_storage().resize_(0)
            return
        for buffer, kept in zip(buffers, self._kept_gradients, strict=True):
            buffer.untyped_storage().resize_(kept.untyped_storage().nbytes())
            buffer.copy_(kept)
        self._kept_gradients = []

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        trained = trained_tensor(parameter)
        state: dict[str, Tensor] = self._optimizer.optimizer.state[trained]
        if not state:
            state |= {name: torch.zeros_like(trained) for name in MOMENTS}
            if isinstance(self._optimizer.optimizer, torch.optim.AdamW):
                state["step"] = torch.tensor(0.0)
        return state


def _mark_divided_parameters(weights: HfWeights) -> None:
    """Say which parameters the ranks divide, as Megatron does when it initializes weights.

    Without the mark the norm would count a divided parameter on one rank alone.
    """
    for parameter, mapping in weights.parameters():
        if mapping.dim is not None and not hasattr(parameter, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(parameter, True, mapping.dim, 1)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = trained_tensor(parameter).grad
    if gradient is None:
        raise RuntimeError("the gradients are not reduced")
    return gradient
