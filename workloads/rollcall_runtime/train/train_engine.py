"""What every training engine offers. It knows tokens, targets and losses, and no roles.

Actor, critic, reference and supervised training are built on it (`train.roles`). After verl's RFC
1560; docs/training.md maps each method to verl's. Methods marked collective are called on all
ranks, in the same order; one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.models import model_source
from rollcall_runtime.worker.engine_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from rollcall_protocol.job_config import OptimizerConfig
    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.train.process_group import TrainerProcessGroup
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import LossFunction, ModelOutput

FIELD = "spec.trainer.engine"


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is made from.

    `model`: a builtin or a directory, as `models.open_model` opens it, and `model_field` the path
    in the job's spec of what names it. `head`: what the model
    predicts. `optimizer`: None for a model that is only evaluated. `own_settings`: what the job's
    engine configuration holds beyond EngineSettings, for the engine to check. `seed` gives the
    weights that the model's source has none for. `ranks`: the process group that all engines of
    this process share. `deterministic`: the same batches give the same bits, or an error names what
    cannot. `temperature`: log-probabilities and entropy are those of logits divided by it, as that
    is how tokens are sampled.
    """

    model: str
    ranks: TrainerProcessGroup
    optimizer: OptimizerConfig | None
    head: Head = "language-model"
    settings: EngineSettings = field(default_factory=EngineSettings)
    own_settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    deterministic: bool = False
    temperature: float = 1.0
    model_field: str = model_source.FIELD


@dataclass(frozen=True, slots=True)
class WeightInfo:
    """One exported tensor: its whole shape, whatever part of it this rank holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightShard:
    """A part of an exported tensor: rows from `start` on of its first dimension."""

    info: WeightInfo
    start: int
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A forward and backward pass over all ranks' rows.

    `loss` is the total divided by `denominator`, the total of the loss's denominators. `metrics`
    are means, or largest values. `tokens`: positions that counted.
    """

    loss: float
    denominator: float
    tokens: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """`gradient_norm` is the norm of all ranks' gradients before clipping.

    `skipped` says why the weights were left as they are: "not-finite", "no-gradient", or "".
    """

    gradient_norm: float
    learning_rate: float
    skipped: Literal["", "not-finite", "no-gradient"] = ""


class TrainEngine(ABC):
    """Model, optimizer and parallelism of one trainer rank. Not usable before `initialize`.

    `settings_known`: the fields of EngineSettings that this engine heeds; another one that is not
    at its default is refused when the engine is made. `devices`: torch device types it runs on.
    `heads`: the model heads it can build. `library`: the module that it is built on, whose version
    `rollcall-train engines` shows.
    """

    settings_known: ClassVar[frozenset[str]]
    devices: ClassVar[frozenset[str]]
    heads: ClassVar[frozenset[Head]] = frozenset({"language-model"})
    library: ClassVar[str] = "torch"

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup

    @abstractmethod
    def initialize(self) -> None:
        """Collective. Build model and optimizer. SpecError for settings that cannot work."""

    @abstractmethod
    def close(self) -> None:
        """Free the model; harmless twice. The process group stays, as it is the caller's."""

    @abstractmethod
    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        """Move parts of the state between the worker's device and host memory.

        What is in host memory must be moved back before it is computed with: RuntimeError else.
        """

    @contextmanager
    def train_mode(self) -> Iterator[None]:
        """Within this context layers behave as in training (dropout)."""
        before = self._set_training(True)
        try:
            yield
        finally:
            self._set_training(before)

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Within this context layers behave as in evaluation, which is how an engine starts."""
        before = self._set_training(False)
        try:
            yield
        finally:
            self._set_training(before)

    @abstractmethod
    def _set_training(self, training: bool) -> bool:
        """Set the model's mode; returns the mode before."""

    @abstractmethod
    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        """Collective. Add to the gradients those of `loss` over `batch`, this rank's rows.

        Ranks may have different numbers of rows, none included. Two calls before one step add up:
        each divides by its own denominator.
        """

    @abstractmethod
    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        """Collective. What the model gives for this rank's rows, without gradients.

        On ranks that hold no outputs (`holds_outputs`) the tensors are the same, sent to them.
        """

    @abstractmethod
    def optimizer_step(self) -> OptimizerStep:
        """Collective. Clip and apply the gradients, move the schedule on, and free the gradients.

        Where the gradient is not finite, or zero everywhere, weights, optimizer and schedule stay.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Forget the gradients that `forward_backward` has added up."""

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """Of the next step."""

    @abstractmethod
    def weight_info(self) -> list[WeightInfo]:
        """What `named_weights` gives, in its order; nothing is gathered."""

    @abstractmethod
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Collective. Whole tensors, gathered one by one as the iterator advances.

        Names and layout are those of the model's source (Hugging Face's for its models), whatever
        the engine's own; with `lora_export` adapter they are the adapter's alone, by PEFT's names
        (`models.adapter_files`). A tensor may be the model's own memory: copy it before the next
        step.
        """

    @abstractmethod
    def weight_shards(self) -> Iterator[WeightShard]:
        """Collective. What this rank sends of the weights, as short-lived as `named_weights`.

        Each tensor comes whole from one rank, or in pieces along its first dimension that make it
        whole in the order of ranks.
        """

    @abstractmethod
    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        """Collective. Take rank 0's whole tensors, named as `named_weights` does; others give None.

        The optimizer's state stays. ValueError on all ranks if names or shapes are not the model's.
        """

    @abstractmethod
    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        """Collective. Copy model, optimizer, schedule, each rank's RNG and `state` (JSON values).

        Returns the function that writes the copy. It is collective too, and may run in a thread
        beside training, as it communicates in a process group of its own. `path` appears only when
        all of it is written, as `train.checkpoint.files` does. OSError, on all ranks, if it cannot
        be written.
        """

    def save_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> None:
        """Collective. `prepare_checkpoint`, and write the copy at once."""
        self.prepare_checkpoint(path, state=state)()

    @abstractmethod
    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        """Collective. Continue from `path`, written by any number of ranks; returns its `state`.

        ValueError, on all ranks, if it holds another model.
        """

    @property
    @abstractmethod
    def data_parallel_rank(self) -> int:
        """Which part of a batch this rank computes."""

    @property
    @abstractmethod
    def data_parallel_size(self) -> int:
        """How many parts a batch is cut into."""

    @property
    @abstractmethod
    def data_parallel_group(self) -> ProcessGroup:
        """The ranks that hold the same part of the model and compute different rows."""

    @property
    def holds_outputs(self) -> bool:
        """Whether this rank computes the model's outputs; in a pipeline the last stage does."""
        return True


train_engines: Registry[TrainEngine] = Registry(
    kind="training engine",
    group="rollcall.train_engines",
    field=f"{FIELD}.name",
    base=TrainEngine,  # type: ignore[type-abstract]
    builtins={"fsdp2": "rollcall_runtime.train.engines.fsdp2:Fsdp2Engine"},
)
