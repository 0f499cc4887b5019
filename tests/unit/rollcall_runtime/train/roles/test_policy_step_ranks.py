"""Actor, critic and reference on two ranks do together what they do on one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_runtime.train.process_group import TrainerProcessGroup
from tests.unit.rollcall_runtime.train.roles import ppo_rank
from tests.unit.rollcall_runtime.train.two_processes import run_two_ranks

SECONDS = 100  # for both processes, imports included


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(ppo_rank.main, folder, seconds=SECONDS)
    return folder


def assert_close(found: Any, expected: Any) -> None:
    for got, want in zip(found, expected, strict=True):
        assert got == pytest.approx(want, abs=2e-5, rel=1e-4)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does_and_one_goes_on_from_both(
    folder: Path, ranks: TrainerProcessGroup
) -> None:
    found = [torch.load(folder / f"figures-{rank}.pt") for rank in range(2)]
    assert found[0] == found[1], "figures are those of all ranks together"
    alone = ppo_rank.opened(ranks)
    for number, expected in enumerate(found[0]):
        assert_close(ppo_rank.figures(alone, number), expected)
    following = ppo_rank.figures(alone, ppo_rank.STEPS)
    resumed = ppo_rank.opened(ranks)
    state = resumed.checkpointed.load_checkpoint(folder / ppo_rank.CHECKPOINT)
    assert state == {"step": ppo_rank.STEPS}
    assert_close(ppo_rank.figures(resumed, ppo_rank.STEPS), following)
    for step in (alone, resumed):
        for engine in step.engines:
            engine.close()
