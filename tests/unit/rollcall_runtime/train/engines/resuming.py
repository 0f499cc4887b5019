"""What each rank does in test_resuming: some steps from wherever the last checkpoint is."""

from pathlib import Path
from typing import Any

import torch

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train.batch_broadcast import broadcast_work
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_batch import TrainBatch
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.engines.two_ranks import meeting
from tests.unit.rollcall_runtime.train.reference import setup, update_policy

Figures = list[tuple[int, float, float, float]]
"""Step, loss, gradient norm, and a random number of the rank's generator after the step."""

# So that the learning rate changes in every step, and a schedule that began again would show.
SCHEDULE: dict[str, Any] = {"schedule": "linear", "decay_steps": 20, "warmup_steps": 2}


def figures_file(folder: Path, rank: int) -> Path:
    return folder / f"figures-{rank}.pt"


def main(rank: int, size: int, port: int, folder: Path, every: int, last: int) -> None:
    """Train to step `last`, saving after each `every` steps; leaves the figures of its steps."""
    ranks = TrainerProcessGroup(meeting(rank, size, port))
    engine = Fsdp2Engine(setup(ranks, **SCHEDULE))
    engine.initialize()
    torch.manual_seed(100 + rank)
    config = CheckpointConfig(every, str(folder / "saved"))
    checkpoints = Checkpointer(config, ranks=ranks, pod_uid="a-pod")
    figures: Figures = []
    for step in range(checkpoints.restore(engine).step + 1, last + 1):
        batch = broadcast_work(ranks, random_batch(seed=step) if rank == 0 else None)
        assert isinstance(batch, TrainBatch)
        stats = update_policy(engine, batch)
        random_number = float(torch.rand(()))
        figures += [(step, item.loss, item.gradient_norm, random_number) for item in stats]
        if checkpoints.due(step):
            checkpoints.save(engine, TrainState(step))
    assert checkpoints.wait(30)
    checkpoints.check()
    torch.save(figures, figures_file(folder, rank))
    engine.close()
    ranks.close()
