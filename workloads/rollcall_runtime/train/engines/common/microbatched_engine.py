"""Forward, backward and optimizer step over micro-batches, whatever shards the model.

A batch is cut into micro-batches, as many on each data-parallel rank as on the one that needs most.
Every loss is divided by a total over all micro-batches and ranks that is known beforehand, so the
cut changes no result but for rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rollcall_protocol.settings_reader import SettingError
from rollcall_protocol.train_settings import check_known, check_mesh
from rollcall_runtime.train.engines.common.loss_totals import LossTotals
from rollcall_runtime.train.engines.common.microbatches import cut_into_microbatches
from rollcall_runtime.train.engines.common.optimizers import check_optimizer, learning_rate_factor
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import FIELD, BatchResult, OptimizerStep, TrainEngine
from rollcall_runtime.train.train_loss import LossSums, ModelOutput
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from rollcall_runtime.train.train_engine import EngineSetup
    from rollcall_runtime.train.train_loss import LossFunction

_OWN_STATE = "engine"  # in a checkpoint's state, beside what the caller keeps there


class MicrobatchedEngine(TrainEngine):
    """What derived engines share. They set `_optimizer` (None without one) in `initialize`.

    `gradient_scale`: what a loss is multiplied by before its backward pass, so that gradients come
    out as their sum over the data-parallel ranks: the number of ranks, where their mean is taken.
    """

    _optimizer: torch.optim.Optimizer | None = None
    gradient_scale: float = 1.0

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        check_settings(type(self), setup)
        self._steps = 0  # of the optimizer, which the learning rate follows

    @abstractmethod
    def _forward(self, batch: TrainBatch, *, entropy: bool) -> ModelOutput:
        """Collective. The model's output for a micro-batch on this worker's device."""

    @abstractmethod
    def _clip_gradients(self, max_norm: float) -> float:
        """Collective. Scale all gradients down to a total norm of `max_norm`; the norm before."""

    def _backward(self, loss: Tensor) -> None:
        """Collective. Add the gradients of a micro-batch's loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        cut = self._cut(batch)
        counts = self._gathered(
            torch.stack([batch.mask.sum().double(), loss.denominator(batch).double().cpu()])
        ).sum(0)
        tokens, denominator = int(counts[0]), float(counts[1]) or 1.0
        totals = LossTotals()
        microbatches = [self._on_device(batch, rows) for rows in cut]

        def loss_of(number: int, output: ModelOutput) -> Tensor:
            sums = loss(output, microbatches[number])
            if not cut[number]:
                sums = _nothing(output, sums)
            totals.add(sums)
            return sums.loss * (self.gradient_scale / denominator)

        self._add_gradients(microbatches, loss_of, entropy=loss.needs_entropy)
        return self._result(totals, denominator, tokens)

    def _add_gradients(
        self,
        microbatches: Sequence[TrainBatch],
        loss_of: Callable[[int, ModelOutput], Tensor],
        *,
        entropy: bool,
    ) -> None:
        """Collective. A forward and a backward pass for each micro-batch.

        `loss_of` gives the loss of the micro-batch of this number from the model's output for it.
        """
        for number, microbatch in enumerate(microbatches):
            self._backward(loss_of(number, self._forward(microbatch, entropy=entropy)))

    def _result(self, totals: LossTotals, denominator: float, tokens: int) -> BatchResult:
        """Collective. What all ranks report of their micro-batches."""
        total, metrics = totals.means(self._gathered)
        return BatchResult(total / denominator, denominator, tokens, metrics)

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for rows in self._cut(batch):
                output = self._forward(self._on_device(batch, rows), entropy=entropy)
                for name in ModelOutput.__slots__:
                    values = getattr(output, name)
                    if values is not None:
                        whole = found.setdefault(name, _blank(batch, values))
                        _put_rows(whole, rows, values.to(whole.device))
        return ModelOutput(**found)

    def optimizer_step(self) -> OptimizerStep:
        if self._optimizer is None:
            raise RuntimeError("this engine was made without an optimizer")
        rate = self.learning_rate
        norm = self._clip_gradients(self.setup.settings.max_gradient_norm)
        if not math.isfinite(norm):
            self.zero_grad()
            return OptimizerStep(norm, rate, "not-finite")
        if norm == 0:
            # Where nothing is to be learnt Adam would only forget how large gradients are, and
            # take the next one, of a single odd sample perhaps, for a large one.
            self.zero_grad()
            return OptimizerStep(norm, rate, "no-gradient")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._apply_gradients(self._optimizer)
        self._steps += 1
        self.zero_grad()
        return OptimizerStep(norm, rate)

    def _apply_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def zero_grad(self) -> None:
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    @property
    def learning_rate(self) -> float:
        if self.setup.optimizer is None:
            return 0.0
        factor = learning_rate_factor(self.setup.settings, self._steps)
        return self.setup.optimizer.learning_rate * factor

    def _checkpoint_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What a checkpoint keeps beside tensors: the caller's `state`, and the schedule's."""
        return {**state, _OWN_STATE: {"optimizer_steps": self._steps}}

    def _take_checkpoint_state(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Continue the schedule; returns the caller's state. ValueError for another's state."""
        try:
            self._steps = int(saved[_OWN_STATE]["optimizer_steps"])
        except (KeyError, TypeError) as error:
            raise ValueError("the checkpoint's state was not written by this release") from error
        return {name: value for name, value in saved.items() if name != _OWN_STATE}

    def _cut(self, batch: TrainBatch) -> list[list[int]]:
        """Rows of each micro-batch: as many micro-batches on all ranks, some without rows."""
        settings = self.setup.settings
        own = cut_into_microbatches(
            batch.lengths.tolist(),
            max_tokens=settings.max_tokens_per_microbatch * settings.context_parallel,
            packing=settings.packing,
        )
        if settings.max_tokens_per_microbatch:
            most = int(self._gathered(torch.tensor([float(len(own))])).max())
        else:
            most = 1
        return own + [[]] * (most - len(own))

    def _on_device(self, batch: TrainBatch, rows: list[int]) -> TrainBatch:
        """The rows; without any a row of one position that counts for nothing."""
        part = batch.select(rows) if rows else _one_position(batch)
        return part.to(self.setup.ranks.device)

    def _gathered(self, values: Tensor) -> Tensor:
        """Each data-parallel rank's `values` (CPU), [ranks, values]."""
        if self.data_parallel_size == 1:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.data_parallel_size)]
        dist.all_gather(parts, values, group=self.data_parallel_group)
        return torch.stack(parts)


def _one_position(batch: TrainBatch) -> TrainBatch:
    def blank(tensor: Tensor) -> Tensor:
        return tensor.new_zeros((1, 1) if tensor.ndim == 2 else (1,))

    return TrainBatch(
        tokens=blank(batch.tokens),
        targets=blank(batch.targets),
        mask=blank(batch.mask),
        lengths=torch.ones_like(blank(batch.lengths)),
        extras={name: blank(tensor) for name, tensor in batch.extras.items()},
    )


def _nothing(output: ModelOutput, named: LossSums) -> LossSums:
    """Sums that add nothing, with the names of `named`; for ranks whose rows are used up.

    The backward pass is collective, so there must be one: of zeros, through the whole model.
    """
    tensors = [getattr(output, name) for name in ModelOutput.__slots__]
    zero = torch.stack([t.sum() * 0 for t in tensors if t is not None]).sum()
    none = zero.detach()
    return LossSums(
        loss=zero,
        metrics=dict.fromkeys(named.metrics, (none, none)),
        maxima=dict.fromkeys(named.maxima, none - math.inf),
    )


def _blank(batch: TrainBatch, values: Tensor) -> Tensor:
    shape = batch.tokens.shape if values.ndim == 2 else batch.lengths.shape
    return torch.zeros(shape, dtype=values.dtype, device=batch.tokens.device)


def _put_rows(whole: Tensor, rows: list[int], values: Tensor) -> None:
    if rows and values.ndim == 2:
        whole[rows, : values.shape[1]] = values
    elif rows:
        whole[rows] = values


def check_settings(engine: type[TrainEngine], setup: EngineSetup) -> None:
    """SpecError for a setting, a head, a device or an optimizer that `engine` does not have."""
    try:
        check_known(setup.settings, engine.settings_known, engine=engine.__name__)
        check_mesh(setup.settings, ranks=setup.ranks.size)
    except SettingError as error:
        key = f".{error.key}" if error.key else ""
        raise SpecError(f"{FIELD}.config{key}", error.problem) from error
    if setup.head not in engine.heads:
        known = ", ".join(sorted(engine.heads))
        raise SpecError(f"{FIELD}.name", f"this engine has no head {setup.head!r}, only: {known}")
    device = setup.ranks.device.type
    if device not in engine.devices:
        known = ", ".join(sorted(engine.devices))
        raise SpecError(
            f"{FIELD}.name", f"this engine runs on {known}, and this worker has {device}"
        )
    if setup.optimizer is not None:
        check_optimizer(setup.optimizer)
