"""The actor and the models beside it are saved and restored as one."""

from pathlib import Path

import pytest

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checkpointer import KEPT, Checkpointer, TrainState
from rollcall_runtime.train.roles.checkpointed_models import ActorAndOthers
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks

RANKS = as_ranks(FakeRanks())


def models(*, actor: int = 0, critic: int = 0) -> tuple[CountingEngine, CountingEngine]:
    """Two engines after so many updates."""
    engines = CountingEngine(), CountingEngine()
    engines[0].updates, engines[1].updates = actor, critic
    return engines


def checkpoints(folder: Path) -> Checkpointer:
    return Checkpointer(CheckpointConfig(1, str(folder)), ranks=RANKS, pod_uid="a-pod")


def save(folder: Path, *, step: int, actor: int, critic: int) -> None:
    saver = checkpoints(folder)
    engine, other = models(actor=actor, critic=critic)
    saver.save(ActorAndOthers(engine, {"critic": other}, ranks=RANKS), TrainState(step))
    assert saver.wait(10)
    saver.check()


def restore(folder: Path) -> tuple[int, int, int]:
    """The step, and the updates of actor and critic."""
    engine, other = models()
    state = checkpoints(folder).restore(ActorAndOthers(engine, {"critic": other}, ranks=RANKS))
    return state.step, engine.updates, other.updates


def test_both_come_back_at_the_same_step(tmp_path: Path) -> None:
    save(tmp_path, step=1, actor=5, critic=7)
    save(tmp_path, step=2, actor=6, critic=8)
    assert restore(tmp_path) == (2, 6, 8)


def test_a_damaged_step_is_passed_over_for_both(tmp_path: Path) -> None:
    save(tmp_path, step=1, actor=5, critic=7)
    save(tmp_path, step=2, actor=6, critic=8)
    (files.checkpoint_path(tmp_path, 2) / "updates").write_text("999")
    assert restore(tmp_path) == (1, 5, 7)


def test_a_damaged_critic_starts_from_its_model_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, step=1, actor=5, critic=7)
    (files.checkpoint_path(tmp_path / "critic", 1) / "updates").write_text("999")
    assert restore(tmp_path) == (1, 5, 0)
    assert "the critic starts from its model again" in caplog.text


def test_old_checkpoints_of_both_are_removed(tmp_path: Path) -> None:
    for step in range(1, 6):
        save(tmp_path, step=step, actor=step, critic=step)
    for folder in (tmp_path, tmp_path / "critic"):
        names = [path.name for path in files.list_checkpoints(folder)]
        assert names == [f"step-{step:08d}" for step in range(5, 5 - KEPT, -1)]
