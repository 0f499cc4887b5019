"""What each of two fsdp2 ranks does in test_fsdp2_ranks: runs in a process of its own."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from rollcall_runtime.train.batch_broadcast import LeaderSignal, broadcast_work
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous
from rollcall_runtime.train.train_batch import TrainBatch
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import setup, update_policy

STEPS = 3
RESULT = "result.pt"
CHECKPOINT = "step-00000003"


def odd_batch(seed: int) -> TrainBatch:
    """15 rows: two ranks cannot have equally many."""
    return random_batch(seed=seed, prompts=3, group_size=5)


def meeting(rank: int, size: int, port: int) -> TrainerRendezvous:
    return TrainerRendezvous("127.0.0.1", port, rank, size, secret="a-secret", timeout=30)


def work_to_do() -> Iterator[TrainBatch | LeaderSignal]:
    """What rank 0 shares."""
    for seed in range(STEPS):
        yield odd_batch(seed)
    yield LeaderSignal.IDLE
    yield LeaderSignal.STOP


def main(rank: int, port: int, folder: Path) -> None:
    """Train STEPS steps on what rank 0 shares, export, save; each rank writes RESULT."""
    ranks = TrainerProcessGroup(meeting(rank, 2, port))
    engine = Fsdp2Engine(setup(ranks))
    engine.initialize()
    stats, rows = [], []
    work = work_to_do()
    while True:
        got = broadcast_work(ranks, next(work) if rank == 0 else None)
        if got is LeaderSignal.STOP:
            break
        if isinstance(got, TrainBatch):
            rows.append(rows_of(engine, got).rows)
            stats += update_policy(engine, got)
    weights = dict(engine.named_weights())
    shards = [(shard.info.name, shard.start, shard.tensor) for shard in engine.weight_shards()]
    local = sum(p.to_local().numel() for p in engine._parameters)  # type: ignore[attr-defined]
    engine.save_checkpoint(folder / CHECKPOINT, state={"step": STEPS})
    result = {
        "place": (engine.data_parallel_rank, engine.data_parallel_size),
        "rows": rows,
        "stats": [asdict(item) for item in stats],
        "weights": weights,
        "shards": [(name, start, tensor.clone()) for name, start, tensor in shards],
        "local": local,
    }
    torch.save(result, folder / f"{rank}-{RESULT}")
    engine.close()
    ranks.close()
