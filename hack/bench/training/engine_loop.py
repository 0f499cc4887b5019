"""The same training by an engine of Rollcall's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.algorithms.supervised_loss import SupervisedLoss
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous
from rollcall_runtime.train.train_engine import EngineSetup, train_engines

if TYPE_CHECKING:
    from pathlib import Path

    from rollcall_runtime.train.train_batch import TrainBatch


class EngineLoop:
    """An engine with the supervised loss; `settings` are EngineSettings by their names."""

    def __init__(
        self,
        model: Path,
        *,
        engine: str,
        rank: int,
        ranks: int,
        port: int,
        threads: int,
        learning_rate: float,
        settings: dict[str, Any],
    ) -> None:
        meeting = TrainerRendezvous(
            host="127.0.0.1", port=port, rank=rank, size=ranks, secret="of the bench"
        )
        setup = EngineSetup(
            model=str(model),
            ranks=TrainerProcessGroup(meeting),
            optimizer=OptimizerConfig("adamw", learning_rate),
            settings=EngineSettings(threads=threads, **settings),
        )
        self._engine = train_engines.get(engine)(setup)
        self._engine.initialize()

    def step(self, batch: TrainBatch) -> float:
        """Train on this rank's rows; returns the mean loss of all ranks' positions."""
        with self._engine.train_mode():
            result = self._engine.forward_backward(rows_of(self._engine, batch), SupervisedLoss())
        self._engine.optimizer_step()
        return result.loss
