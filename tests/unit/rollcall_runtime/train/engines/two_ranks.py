"""What each of two fsdp2 ranks does in test_fsdp2_ranks: runs in a process of its own."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from rollcall_runtime.train.batch import Batch
from rollcall_runtime.train.batch_broadcast import LeaderSignal
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.policy_update import update_policy
from rollcall_runtime.train.process_group import TrainerRendezvous
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import MINIBATCHES, loss, setup

STEPS = 3
RESULT = "result.pt"
CHECKPOINT = "step-00000003"


def odd_batch(seed: int) -> Batch:
    """15 rows: two ranks cannot have equally many without one more."""
    return random_batch(seed=seed, prompts=3, group_size=5)


def work_to_do() -> Iterator[Batch | LeaderSignal]:
    """What rank 0 shares."""
    for seed in range(STEPS):
        yield odd_batch(seed)
    yield LeaderSignal.IDLE
    yield LeaderSignal.STOP


def main(rank: int, port: int, folder: Path) -> None:
    """Train STEPS steps on what rank 0 shares, export, save; rank 0 writes RESULT."""
    meeting = TrainerRendezvous(host="127.0.0.1", port=port, rank=rank, size=2, timeout=30)
    engine = Fsdp2Engine(setup(meeting))
    engine.initialize()
    stats, rows = [], []
    work = work_to_do()
    while True:
        got = engine.broadcast(next(work) if rank == 0 else None)
        if got is LeaderSignal.STOP:
            break
        if isinstance(got, Batch):
            rows.append(got.rows)
            stats += update_policy(engine, got, loss=loss(), minibatches=MINIBATCHES)
    weights = dict(engine.named_weights())
    own = {name: tensor.clone() for name, tensor in engine.own_weights()}
    local = sum(p.to_local().numel() for p in engine._model.parameters())  # type: ignore[attr-defined]
    engine.save_checkpoint(folder / CHECKPOINT, state={"step": STEPS})
    result = {
        "place": (engine.data_parallel_rank, engine.data_parallel_size),
        "rows": rows,
        "stats": [asdict(item) for item in stats],
        "weights": weights,
        "own": own,
        "local": local,
    }
    torch.save(result, folder / f"{rank}-{RESULT}")
    engine.close()
