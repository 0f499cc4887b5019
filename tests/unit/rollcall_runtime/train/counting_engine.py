"""A training engine that computes nothing and counts what it is asked for."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import (
    BatchResult,
    EngineSetup,
    OptimizerStep,
    TrainEngine,
    WeightInfo,
    WeightShard,
)
from rollcall_runtime.train.train_loss import LossFunction, ModelOutput
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks

WEIGHT = WeightInfo("weight", torch.float32, (1,))


class CountingEngine(TrainEngine):
    """Its weight is the number of optimizer steps."""

    settings_known = frozenset()
    devices = frozenset({"cpu"})

    def __init__(self, ranks: FakeRanks | None = None) -> None:
        self.ranks = ranks or FakeRanks()
        super().__init__(
            EngineSetup("builtin:reverse-tiny", as_ranks(self.ranks), OptimizerConfig("adamw", 0.1))
        )
        self.updates = 0
        self.gathered = 0

    def initialize(self) -> None:
        self.updates = 0

    def close(self) -> None:
        pass

    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        pass

    def _set_training(self, training: bool) -> bool:
        return not training

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        return BatchResult(0.0, 1.0, batch.rows, {})

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        return ModelOutput(logprobs=torch.zeros(batch.tokens.shape))

    def optimizer_step(self) -> OptimizerStep:
        self.updates += 1
        return OptimizerStep(0.0, 0.1)

    def zero_grad(self) -> None:
        pass

    @property
    def learning_rate(self) -> float:
        return 0.1

    def weight_info(self) -> list[WeightInfo]:
        return [WEIGHT]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        self.gathered += 1
        yield "weight", torch.tensor([float(self.updates)])

    def weight_shards(self) -> Iterator[WeightShard]:
        yield WeightShard(WEIGHT, 0, torch.full((1,), 10.0 * self.ranks.rank + self.updates))

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        self.updates = int((weights or {})["weight"]) if self.ranks.rank == 0 else -1

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        updates = self.updates

        def write() -> None:
            files.begin_checkpoint(path)
            (files.scratch_path(path) / "updates").write_text(str(updates))
            files.commit_checkpoint(path, state=state)

        return write

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        self.updates = int((path / "updates").read_text())
        return files.read_state(path)

    @property
    def data_parallel_rank(self) -> int:
        return self.ranks.rank

    @property
    def data_parallel_size(self) -> int:
        return max(self.ranks.size, self.ranks.rank + 1)

    @property
    def data_parallel_group(self) -> ProcessGroup:
        raise NotImplementedError
