"""What each rank does in test_resuming: some steps from wherever the last checkpoint is."""

from pathlib import Path

import torch

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_update import update_policy
from rollcall_runtime.train.process_group import TrainerRendezvous
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import MINIBATCHES, loss, setup

Figures = list[tuple[int, float, float, float]]
"""Step, loss, gradient norm, and a random number of the rank's generator after the step."""


def figures_file(folder: Path, rank: int) -> Path:
    return folder / f"figures-{rank}.pt"


def main(rank: int, size: int, port: int, folder: Path, every: int, last: int) -> None:
    """Train to step `last`, saving after each `every` steps; leaves the figures of its steps."""
    engine = Fsdp2Engine(setup(TrainerRendezvous("127.0.0.1", port, rank, size, timeout=30)))
    engine.initialize()
    torch.manual_seed(100 + rank)
    checkpoints = Checkpointer(CheckpointConfig(every, str(folder / "saved")), pod_uid="a-pod")
    figures: Figures = []
    for step in range(checkpoints.restore(engine).step + 1, last + 1):
        batch = engine.broadcast(random_batch(seed=step) if rank == 0 else None)
        assert isinstance(batch, Batch)
        stats = update_policy(engine, batch, loss=loss(), minibatches=MINIBATCHES)
        random_number = float(torch.rand(()))
        figures += [(step, item.loss, item.gradient_norm, random_number) for item in stats]
        if checkpoints.due(step):
            checkpoints.save(engine, TrainState(step))
    assert checkpoints.wait(30)
    checkpoints.check()
    torch.save(figures, figures_file(folder, rank))
    engine.close()
