"""What every training engine offers. It knows tokens and losses, and nothing of RL.

After verl's BaseEngine (RFC 1560), cut to what the asynchronous trainer uses. Methods marked
collective must be called on all data-parallel ranks, in the same order; one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rollcall_runtime.train.process_group import TrainerRendezvous
from rollcall_runtime.worker.engine_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

    from rollcall_protocol.job_config import OptimizerConfig
    from rollcall_runtime.train.batch import Batch
    from rollcall_runtime.train.batch_broadcast import LeaderSignal
    from rollcall_runtime.train.losses import LossFunction

FIELD = "spec.trainer.engine"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is made from. `config` holds the engine's own settings as the job has them.

    `seed` gives the first weights of a model that has none; `rendezvous` where the ranks meet.
    `deterministic`: the same batches give the same bits, or an error names what cannot.
    """

    model: str
    optimizer: OptimizerConfig
    config: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    rendezvous: TrainerRendezvous = field(default_factory=TrainerRendezvous)
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class WeightInfo:
    """One exported tensor: its whole shape, whatever part of it this rank holds."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """One optimizer step: `loss` and `metrics` are means over the `tokens` of all ranks' responses.

    `gradient_norm` is the norm before clipping.
    """

    loss: float
    gradient_norm: float
    tokens: int
    metrics: Mapping[str, float]


class TrainingDivergedError(RuntimeError):
    """A loss or gradient is not finite; the weights are still those before the step."""


class TrainEngine(ABC):
    """Model, optimizer and parallelism of one trainer rank. `close` frees what it holds."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup

    @abstractmethod
    def initialize(self) -> None:
        """Collective. Meet the other ranks, build model and optimizer.

        SpecError for settings that cannot work; RuntimeError (DistStoreError) if a rank stays away.
        """

    @abstractmethod
    def train_batch(
        self, minibatches: Sequence[Batch], loss_function: LossFunction
    ) -> list[UpdateStats]:
        """Collective. One optimizer step for each minibatch (this rank's rows), in their order.

        The loss is divided by the response tokens of all ranks. TrainingDivergedError stops before
        the step that is not finite.
        """

    @abstractmethod
    def infer(self, batch: Batch) -> Tensor:
        """Collective. Log-probabilities of `tokens[:, 1:]` now: float32 [rows, length - 1]."""

    @abstractmethod
    def weight_info(self) -> list[WeightInfo]:
        """What `named_weights` gives, in its order; nothing is gathered."""

    @abstractmethod
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Collective. Whole tensors, gathered one by one as the iterator advances.

        A tensor may be the model's own memory: copy it before the next training step.
        """

    @abstractmethod
    def own_weights(self) -> Iterator[tuple[str, Tensor]]:
        """What this rank holds, without any communication; as short-lived as `named_weights`.

        Each tensor is held by one rank, or in pieces along its first dimension that make it whole
        in the order of ranks.
        """

    @abstractmethod
    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        """Collective. Take rank 0's whole tensors, named as `named_weights` does; others give None.

        The optimizer's state stays. ValueError on all ranks if names or shapes are not the model's.
        """

    @abstractmethod
    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        """Collective. Copy model, optimizer, each rank's RNG and `state` (JSON values) for a save.

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
        """Collective. Continue from `path`, written by any number of ranks; returns its `state`."""

    @abstractmethod
    def broadcast(self, work: Batch | LeaderSignal | None) -> Batch | LeaderSignal:
        """Collective. Rank 0's batch, cut into the ranks' rows, or its signal; others give None."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Collective. Every rank's small `value` on all ranks, in their order."""

    @abstractmethod
    def gather_for_checkpoint(self, value: T) -> list[T]:
        """Collective. Like `gather`, in the process group of the threads that write checkpoints."""

    @property
    @abstractmethod
    def data_parallel_rank(self) -> int:
        """Which part of a batch this rank computes."""

    @property
    @abstractmethod
    def data_parallel_size(self) -> int:
        """How many parts a batch is cut into."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group, free the model; harmless twice."""


train_engines: Registry[TrainEngine] = Registry(
    kind="training engine",
    group="rollcall.train_engines",
    field=f"{FIELD}.name",
    base=TrainEngine,  # type: ignore[type-abstract]
    builtins={"fsdp2": "rollcall_runtime.train.engines.fsdp2:Fsdp2Engine"},
)
