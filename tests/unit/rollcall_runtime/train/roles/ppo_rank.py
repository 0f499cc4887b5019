"""What each rank of test_policy_step_ranks does; with two ranks in a process of its own."""

from pathlib import Path
from typing import Any

import torch

from rollcall_protocol.algorithm_settings import preset
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.build_roles import build_policy_step
from rollcall_runtime.train.roles.policy_step import PolicyStep
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.engines.two_ranks import meeting
from tests.unit.rollcall_runtime.train.reference import setup

STEPS = 3
CHECKPOINT = "step-00000003"
SETTINGS = preset("ppo", kl_coefficient=0.1)


def opened(ranks: TrainerProcessGroup) -> PolicyStep:
    """Actor, critic and reference of the built-in model."""
    job = job_config(algorithm={"settings": SETTINGS})
    step = build_policy_step(job, setup(ranks), Fsdp2Engine, minibatches=2)
    for engine in step.engines:
        engine.initialize()
    return step


def figures(step: PolicyStep, number: int) -> list[dict[str, float]]:
    """Train on 15 rows, of which two ranks cannot have equally many."""
    result = step.run(random_batch(seed=number, prompts=3, group_size=5), step=number)
    return [
        {"loss": update.loss, "norm": update.gradient_norm, **update.metrics}
        for update in (*result.actor, *result.critic)
    ]


def main(rank: int, port: int, folder: Path) -> None:
    """Train STEPS steps as one of two ranks and save; leaves its figures."""
    ranks = TrainerProcessGroup(meeting(rank, 2, port))
    step = opened(ranks)
    found: list[Any] = [figures(step, number) for number in range(STEPS)]
    step.checkpointed.prepare_checkpoint(folder / CHECKPOINT, state={"step": STEPS})()
    torch.save(found, folder / f"figures-{rank}.pt")
    for engine in step.engines:
        engine.close()
    ranks.close()
