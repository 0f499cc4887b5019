"""A moving reference is part of the checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.job_config import CheckpointConfig, ReferenceConfig
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.roles.build_roles import build_policy_step
from rollcall_runtime.train.roles.policy_step import PolicyStep
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.reference import setup

SETTINGS = preset("grpo", kl_coefficient=0.1)
EVERY, SAVED, STEPS = 2, 3, 5  # the reference has moved before the checkpoint, not at it


@pytest.fixture
def ranks() -> Iterator[TrainerProcessGroup]:
    group = TrainerProcessGroup()
    yield group
    group.close()


def opened(ranks: TrainerProcessGroup, *, update_every: int = EVERY) -> PolicyStep:
    job = job_config(
        algorithm={"settings": SETTINGS}, reference=ReferenceConfig(update_every=update_every)
    )
    step = build_policy_step(job, setup(ranks), Fsdp2Engine, minibatches=1)
    for engine in step.engines:
        engine.initialize()
    return step


def divergences(step: PolicyStep, first: int, end: int) -> list[float]:
    """From the reference, in each step."""
    return [
        step.run(random_batch(seed=number), step=number).actor[0].metrics["kl_loss"]
        for number in range(first, end)
    ]


def checkpoints(ranks: TrainerProcessGroup, folder: Path) -> Checkpointer:
    return Checkpointer(CheckpointConfig(1, str(folder)), ranks=ranks, pod_uid="a-pod")


def test_a_restart_goes_on_with_the_reference_as_it_was(
    ranks: TrainerProcessGroup, tmp_path: Path
) -> None:
    step = opened(ranks)
    before = divergences(step, 0, SAVED)
    assert before[0] == pytest.approx(0, abs=1e-9)
    assert before[EVERY] == pytest.approx(0, abs=1e-9), "it has just moved"
    saver = checkpoints(ranks, tmp_path)
    saver.save(step.checkpointed, TrainState(SAVED))
    assert saver.wait(10)
    expected = divergences(step, SAVED, STEPS)
    assert expected[0] > 1e-6, "the actor has moved on since"

    resumed = opened(ranks)
    assert checkpoints(ranks, tmp_path).restore(resumed.checkpointed).step == SAVED
    assert divergences(resumed, SAVED, STEPS) == expected


def test_a_reference_that_stays_costs_no_checkpoint(ranks: TrainerProcessGroup) -> None:
    step = opened(ranks, update_every=0)
    assert step.checkpointed is step.actor.engine
