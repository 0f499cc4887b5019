"""Which checkpoint training resumes from, and what becomes of it when its volume fails."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.checkpoint.files import (
    begin_checkpoint,
    checkpoint_path,
    commit_checkpoint,
    list_checkpoints,
)
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.worker.errors import FencedError, SpecError
from tests.unit.rollcall_runtime.train.reference import setup
from tests.unit.rollcall_runtime.train.test_trainer_rank import CountingEngine


def checkpoints(root: Path, pod_uid: str = "a-pod") -> Checkpointer:
    return Checkpointer(CheckpointConfig(every_steps=5, path=str(root)), pod_uid=pod_uid)


def saved(root: Path, *steps: int) -> None:
    engine, made = CountingEngine(), checkpoints(root)
    for step in steps:
        made.save(engine, TrainState(step))


def test_a_torn_one_is_skipped_for_the_next_older_whole_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 5, 10)
    os.truncate(checkpoint_path(tmp_path, 10) / "state.json", 9)
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 5
    assert "step-00000010 is torn and is skipped: state.json is damaged" in caplog.text


def test_what_another_rank_cannot_read_is_skipped_by_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 5, 10)

    class Gathering(CountingEngine):
        def gather(self, value: Any) -> list[Any]:
            told = "updates cannot be read" if value == "" and not caplog.text else value
            return [value, told]

    assert checkpoints(tmp_path).restore(Gathering()).step == 5
    assert "step-00000010 is torn and is skipped: updates cannot be read" in caplog.text


def test_training_begins_anew_when_none_is_whole(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10)
    for path in list_checkpoints(tmp_path):
        (path / "updates").unlink()
    assert checkpoints(tmp_path).restore(CountingEngine()) == TrainState()


def test_a_trainer_that_was_struck_off_and_lives_on_saves_no_more(tmp_path: Path) -> None:
    engine, old, new = CountingEngine(), checkpoints(tmp_path, "old"), checkpoints(tmp_path, "new")
    old.restore(engine)
    old.save(engine, TrainState(5))
    under_way = checkpoint_path(tmp_path, 10)
    begin_checkpoint(under_way)
    assert new.restore(engine).step == 5
    with pytest.raises(FileNotFoundError):
        commit_checkpoint(under_way, state={})
    with pytest.raises(FencedError, match="pod new's now"):
        old.save(engine, TrainState(15))
    with pytest.raises(FencedError, match="pod new's now"):
        checkpoints(tmp_path, "old").restore(engine)
    new.save(engine, TrainState(10))
    assert checkpoints(tmp_path, "newest").restore(engine).step == 10


def test_a_claim_that_fails_on_rank_0_costs_all_ranks_that_checkpoint_alone(tmp_path: Path) -> None:
    failed = OSError(errno.ESTALE, "stale file handle")

    class Other(CountingEngine):
        def gather(self, value: Any) -> list[Any]:
            return [(failed.errno, failed.strerror), value]

    made = checkpoints(tmp_path)
    made.save(Other(rank=1), TrainState(5))
    assert made.problem == f"step 5 was not saved: {failed}"
    assert list_checkpoints(tmp_path) == []


class FailingEngine(CountingEngine):
    """Its volume fails with `error` while there is one."""

    error: OSError | None = None

    def save_checkpoint(self, path: Path, *, state: Any) -> None:
        if self.error is not None:
            raise self.error
        super().save_checkpoint(path, state=state)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EIO])
def test_a_save_that_fails_costs_that_checkpoint_alone(tmp_path: Path, number: int) -> None:
    engine, made = FailingEngine(), checkpoints(tmp_path)
    made.save(engine, TrainState(5))
    engine.error = OSError(number, os.strerror(number))
    made.save(engine, TrainState(10))
    assert made.failures == 1
    assert made.problem.startswith("step 10 was not saved: ")
    assert made.unsaved(10)
    engine.error = None
    made.save(engine, TrainState(15))
    assert (made.failures, made.problem) == (1, "")
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 15


def test_a_volume_that_never_could_be_written_is_the_specs_fault(tmp_path: Path) -> None:
    engine = FailingEngine()
    engine.error = OSError(errno.EROFS, "read-only file system")
    with pytest.raises(SpecError, match=r"spec.trainer.checkpoint.volume: cannot save to"):
        checkpoints(tmp_path).save(engine, TrainState(5))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A volume of 4 MiB: two checkpoints of the tiny model (1.3 MB each) and a half."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_on_a_full_disk_training_goes_on_and_nothing_is_left_behind(small: Path) -> None:
    engine, made = Fsdp2Engine(setup()), checkpoints(small)
    engine.initialize()
    try:
        made.save(engine, TrainState(5))
        filler = small / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(small).free - 1_000_000))
        made.save(engine, TrainState(10))
        assert made.failures == 1
        assert "step 10 was not saved" in made.problem
        left = [filler, checkpoint_path(small, 5)]
        assert sorted(small.glob("[!.]*")) == left
        assert not list(small.glob(".step*")), "no scratch is left"
        filler.unlink()
        made.save(engine, TrainState(15))
        assert made.problem == ""
        assert made.restore(engine).step == 15
    finally:
        engine.close()


def test_a_volume_that_becomes_read_only_does_not_end_training(small: Path) -> None:
    engine, made = Fsdp2Engine(setup()), checkpoints(small)
    engine.initialize()
    try:
        made.save(engine, TrainState(5))
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        made.save(engine, TrainState(10))
        assert "Read-only file system" in made.problem
        assert checkpoints(small).restore(engine).step == 5
    finally:
        engine.close()
