"""FSDP2: parameters, gradients and optimizer state sharded over the ranks by fully_shard.

Works on one rank as well. Runs on CPUs over gloo; torch 2.6 and later.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.batch_broadcast import LeaderSignal, broadcast_work
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.distributed_save import (
    load_rng_states,
    prepare_save,
    use_rng_states,
)
from rollcall_runtime.train.optimizers import OptimizerTuning, build_optimizer
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import (
    FIELD,
    EngineSetup,
    T,
    TrainEngine,
    TrainingDivergedError,
    UpdateStats,
    WeightInfo,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from rollcall_runtime.train.batch import Batch
    from rollcall_runtime.train.losses import LossFunction, LossSums


@dataclass(frozen=True, slots=True)
class Fsdp2Settings:
    """`trainer.engine.config`.

    `reshard_after_forward` gathers each layer again in the backward pass: less memory, more
    traffic. `threads` is how many cores one operation may use; 0 leaves torch's default.
    """

    max_gradient_norm: float = 1.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    reshard_after_forward: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if not (self.max_gradient_norm > 0 and self.weight_decay >= 0 and self.threads >= 0):
            raise ValueError("maxGradientNorm must be positive, weightDecay and threads at least 0")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError("beta1 and beta2 must be at least 0 and below 1")


class Fsdp2Engine(TrainEngine):
    """See TrainEngine. Not usable before `initialize`."""

    _group: TrainerProcessGroup
    _model: nn.Module
    _optimizer: torch.optim.Optimizer

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self._settings = read_settings(Fsdp2Settings, setup.config, field=f"{FIELD}.config")
        if self._settings.reshard_after_forward and torch26_compat.CANNOT_RESHARD:
            raise SpecError(
                f"{FIELD}.config.reshardAfterForward", "needs torch 2.7 or newer on a CPU"
            )
        self._owned = ExitStack()

    def initialize(self) -> None:
        if self._settings.threads:
            torch.set_num_threads(self._settings.threads)
        torch.use_deterministic_algorithms(self.setup.deterministic)
        model = open_model(self.setup.model).build(seed=self.setup.seed)
        with ExitStack() as undo:
            self._group = TrainerProcessGroup(self.setup.rendezvous)
            undo.callback(self._group.close)
            self._shard(model)
            self._owned = undo.pop_all()

    def _shard(self, model: nn.Module) -> None:
        settings = self._settings
        torch26_compat.complete_cpu_streams()
        if settings.reshard_after_forward:
            # Only then are there points between which a layer's memory is free.
            for block in model.get_submodule("blocks").children():
                fully_shard(block, mesh=self._group.mesh)
        fully_shard(
            model, mesh=self._group.mesh, reshard_after_forward=settings.reshard_after_forward
        )
        self._model = model
        # The mean over ranks that FSDP takes of the gradients is to come out as their sum.
        self._gradient_scale = self._group.size / self._group.sum_per_mean()
        self._optimizer = build_optimizer(
            self.setup.optimizer,
            model.parameters(),
            tuning=OptimizerTuning(settings.weight_decay, settings.beta1, settings.beta2),
        )

    def train_batch(
        self, minibatches: Sequence[Batch], loss_function: LossFunction
    ) -> list[UpdateStats]:
        return [self._update(minibatch, loss_function) for minibatch in minibatches]

    def _update(self, batch: Batch, loss_function: LossFunction) -> UpdateStats:
        sums = loss_function(self._logprobs(batch), batch)
        tokens, loss, metrics = self._means(batch, sums)
        (sums.loss * (self._gradient_scale / max(tokens, 1))).backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_gradient_norm)
        gradient_norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            self._optimizer.zero_grad()
            raise TrainingDivergedError(f"loss {loss}, gradient norm {gradient_norm}")
        if gradient_norm > 0:
            # Where nothing is to be learnt Adam would only forget how large gradients are, and
            # take the next one, of a single odd sample perhaps, for a large one.
            self._optimizer.step()
        self._optimizer.zero_grad()
        return UpdateStats(loss, gradient_norm, tokens, metrics)

    def _means(self, batch: Batch, sums: LossSums) -> tuple[int, float, dict[str, float]]:
        """Response tokens of all ranks, the loss and the metrics over them, in one collective."""
        values = torch.stack(
            [batch.mask.sum().double(), sums.loss.detach().double()]
            + [value.double() for value in sums.metrics.values()]
        )
        tokens, loss, *metrics = self._group.sum(values).tolist()
        count = max(tokens, 1.0)
        means = (value / count for value in metrics)
        return int(tokens), loss / count, dict(zip(sums.metrics, means, strict=True))

    def _logprobs(self, batch: Batch) -> Tensor:
        logits = self._model(batch.tokens[:, :-1])
        targets = batch.tokens[:, 1:, None]
        found: Tensor = logits.log_softmax(-1).gather(-1, targets)[..., 0]
        return found

    def infer(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self._logprobs(batch)

    def weight_info(self) -> list[WeightInfo]:
        return [
            WeightInfo(name, tensor.dtype, tuple(tensor.shape))
            for name, tensor in self._model.state_dict().items()
        ]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._model.state_dict().items():
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def own_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._model.state_dict().items():
            if not isinstance(tensor, DTensor):
                if self._group.rank == 0:
                    yield name, tensor
                continue
            if tensor.placements != (Shard(0),):
                raise RuntimeError(f"{name} is placed as {tensor.placements}, not as FSDP2 does")
            local = tensor.to_local()
            # The last ranks have no rows of a short tensor; of an empty one no rank has.
            if len(local) or (self._group.rank == 0 and not len(tensor)):
                yield name, local

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        self._expect(weights)
        # Broadcast from rank 0, each rank keeps its shard.
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(self._model, dict(weights or {}), options=options)

    def _expect(self, weights: Mapping[str, Tensor] | None) -> None:
        problem = ""
        if self._group.rank == 0:
            wanted = {info.name: (info.dtype, info.shape) for info in self.weight_info()}
            given = {n: (t.dtype, tuple(t.shape)) for n, t in (weights or {}).items()}
            wrong = sorted(name for name, _ in wanted.items() ^ given.items())
            problem = f"not this model's: {', '.join(wrong[:3])}" if wrong else ""
        problem = self._group.gather(problem)[0]
        if problem:
            raise ValueError(problem)

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        return prepare_save(self._group, path, tensors=self._state(), state=state)

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        state = files.read_state(path)
        loaded = self._state() | load_rng_states(self._group, path)
        load(loaded, checkpoint_id=path)
        set_model_state_dict(self._model, loaded["model"])
        set_optimizer_state_dict(self._model, self._optimizer, loaded["optimizer"])
        use_rng_states(self._group, loaded)
        return state

    def _state(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self._model),
            "optimizer": get_optimizer_state_dict(self._model, self._optimizer),
        }

    def broadcast(self, work: Batch | LeaderSignal | None) -> Batch | LeaderSignal:
        return broadcast_work(self._group, work)

    def gather(self, value: T) -> list[T]:
        return self._group.gather(value)

    def gather_for_checkpoint(self, value: T) -> list[T]:
        return self._group.gather_for_checkpoint(value)

    @property
    def data_parallel_rank(self) -> int:
        return self._group.rank

    @property
    def data_parallel_size(self) -> int:
        return self._group.size

    def close(self) -> None:
        self._owned.close()
