"""Which checkpoint training resumes from, and what becomes of it when its volume fails."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.wire.json_codec import encode
from rollcall_runtime.data.data_identity import DataIdentity, SourceIdentity
from rollcall_runtime.train.checkpoint import checkpointer, files
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer, TrainState
from rollcall_runtime.train.checkpoint.files import (
    begin_checkpoint,
    checkpoint_path,
    commit_checkpoint,
    list_checkpoints,
)
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import TrainEngine
from rollcall_runtime.worker.errors import FencedError, SpecError
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks
from tests.unit.rollcall_runtime.train.reference import setup, update_policy


def checkpoints(
    root: Path, pod_uid: str = "a-pod", *, ranks: FakeRanks | None = None
) -> Checkpointer:
    config = CheckpointConfig(every_steps=5, path=str(root))
    return Checkpointer(config, ranks=as_ranks(ranks or FakeRanks()), pod_uid=pod_uid)


def save(made: Checkpointer, engine: TrainEngine, state: TrainState) -> None:
    """Save, and wait until the thread has written it."""
    made.save(engine, state)
    assert made.wait(10)
    made.check()


def saved(root: Path, *steps: int) -> None:
    engine, made = CountingEngine(), checkpoints(root)
    for step in steps:
        save(made, engine, TrainState(step))


def test_a_torn_one_is_skipped_for_the_next_older_whole_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 5, 10)
    os.truncate(checkpoint_path(tmp_path, 10) / "state.json", 9)
    made, engine = checkpoints(tmp_path), CountingEngine()
    assert made.restore(engine).step == 5
    assert "step-00000010 is damaged and is skipped: state.json is damaged" in caplog.text
    assert made.problem.startswith("checkpoint step-00000010 is damaged (state.json is damaged")
    assert made.problem.endswith("; training resumed from step-00000005")
    save(made, engine, TrainState(15))
    assert made.problem == "", "there is a newer one that is whole"


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_text("[" * 10**5)


@pytest.mark.parametrize("spoil", [pipe, device, deep])
@pytest.mark.parametrize("part", ["state.json", "another file"])
def test_a_file_that_is_read_for_ever_makes_a_checkpoint_torn(
    tmp_path: Path, spoil: Callable[[Path], None], part: str
) -> None:
    saved(tmp_path, 5, 10)
    newest = checkpoint_path(tmp_path, 10)
    others = (path for path in sorted(newest.rglob("*")) if path.is_file())
    spoil(next(path for path in others if (path.name == "state.json") == (part == "state.json")))
    made = checkpoints(tmp_path)
    assert made.restore(CountingEngine()).step == 5
    assert "checkpoint step-00000010 is damaged" in made.problem


def test_files_that_a_checkpoint_does_not_list_are_not_opened(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    for folder in (tmp_path, checkpoint_path(tmp_path, 5)):
        for name in ("evil.pkl", "evil.pt", "evil.zip", "__init__.py"):
            os.mkfifo(folder / name)  # whoever opens one waits for ever
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 5


def test_what_another_rank_cannot_read_is_skipped_by_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 5, 10)

    class Gathering(FakeRanks):
        def gather(self, value: Any) -> list[Any]:
            of_other_rank = "updates cannot be read" if value == "" and not caplog.text else value
            return [value, of_other_rank]

    assert checkpoints(tmp_path, ranks=Gathering()).restore(CountingEngine()).step == 5
    assert "step-00000010 is damaged and is skipped: updates cannot be read" in caplog.text


def test_a_save_is_due_every_so_many_steps(tmp_path: Path) -> None:
    without = Checkpointer(None, ranks=as_ranks(FakeRanks()), pod_uid="a-pod")
    made = checkpoints(tmp_path)
    assert [step for step in range(1, 17) if made.due(step)] == [5, 10, 15]
    assert not any(without.due(step) for step in range(1, 17))


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10, 15)
    assert list_checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in (15, 10)]


def test_what_training_resumed_from_is_not_saved_again(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    made = checkpoints(tmp_path)
    made.restore(CountingEngine())
    assert not made.unsaved(5)
    assert made.unsaved(6)


DATA = DataIdentity(7, (SourceIdentity("/data/a.jsonl", 1, 12, "digest"),), 4)


def test_a_checkpoint_of_other_data_is_refused_unless_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def of(data: DataIdentity, other_data: str = "Refuse") -> Checkpointer:
        config = CheckpointConfig(5, str(tmp_path), other_data)
        return Checkpointer(config, ranks=as_ranks(FakeRanks()), pod_uid="a-pod", data=data)

    save(of(DATA), CountingEngine(), TrainState(5))
    assert of(DATA).restore(CountingEngine()) == TrainState(5, data=DATA)
    with pytest.raises(SpecError) as refused:
        of(replace(DATA, seed=8)).restore(CountingEngine())
    assert refused.value.field == "spec.data"
    for part in (
        "step-00000005 counts rows of other data: seed is 8, and was 7; give the data that it had",
        "set spec.trainer.checkpoint.otherData to Continue (rollcall-train sft: --other-data Cont",
        "to go on at step 5 with these",
    ):
        assert part in str(refused.value)
    going_on = of(replace(DATA, seed=8), "Continue")
    assert going_on.restore(CountingEngine()).step == 5
    assert "counts rows of other data (seed is 8, and was 7)" in caplog.text


def test_a_checkpoint_that_does_not_say_its_data_is_gone_on_with(tmp_path: Path) -> None:
    """As former releases wrote them."""
    path = checkpoint_path(tmp_path, 5)
    begin_checkpoint(path)
    (files.scratch_path(path) / "updates").write_text("3")
    former = encode(TrainState(5))
    del former["data"]
    commit_checkpoint(path, state=former)
    config = CheckpointConfig(5, str(tmp_path))
    made = Checkpointer(config, ranks=as_ranks(FakeRanks()), pod_uid="a-pod", data=DATA)
    assert made.restore(CountingEngine()).step == 5


def test_training_resumes_from_a_commit_that_a_crash_broke(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    checkpoint_path(tmp_path, 5).rename(tmp_path / ".step-00000005.old")
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 5


def test_training_begins_again_when_no_checkpoint_is_whole(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10)
    for path in list_checkpoints(tmp_path):
        (path / "updates").unlink()
    made = checkpoints(tmp_path)
    assert made.restore(CountingEngine()) == TrainState()
    assert made.problem.endswith("; training resumed from the beginning")


def test_a_trainer_that_was_force_deleted_and_still_runs_saves_no_checkpoint(
    tmp_path: Path,
) -> None:
    engine, old, new = CountingEngine(), checkpoints(tmp_path, "old"), checkpoints(tmp_path, "new")
    old.restore(engine)
    save(old, engine, TrainState(5))
    under_way = checkpoint_path(tmp_path, 10)
    begin_checkpoint(under_way)
    assert new.restore(engine).step == 5
    with pytest.raises(FileNotFoundError):
        commit_checkpoint(under_way, state={})
    with pytest.raises(FencedError, match="belong to pod new, which"):
        save(old, engine, TrainState(15))
    with pytest.raises(FencedError, match="belong to pod new, which"):
        checkpoints(tmp_path, "old").restore(engine)
    save(new, engine, TrainState(10))
    assert checkpoints(tmp_path, "newest").restore(engine).step == 10


def test_a_claim_that_fails_on_rank_0_costs_all_ranks_that_checkpoint_alone(tmp_path: Path) -> None:
    failed = OSError(errno.ESTALE, "stale file handle")

    class OtherRank(FakeRanks):
        def gather_for_checkpoint(self, value: Any) -> list[Any]:
            return [(failed.errno, failed.strerror), value]

    made = checkpoints(tmp_path, ranks=OtherRank(rank=1))
    save(made, CountingEngine(), TrainState(5))
    assert made.problem == f"step 5 was not saved: {failed}"
    assert list_checkpoints(tmp_path) == []


class FailingEngine(CountingEngine):
    """Its volume fails with `error` while there is one."""

    error: OSError | None = None

    def prepare_checkpoint(self, path: Path, *, state: Any) -> Callable[[], None]:
        write = super().prepare_checkpoint(path, state=state)

        def failing() -> None:
            if self.error is not None:
                raise self.error
            write()

        return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ESTALE, errno.EIO])
def test_a_save_that_fails_costs_that_checkpoint_alone(tmp_path: Path, number: int) -> None:
    engine, made = FailingEngine(), checkpoints(tmp_path)
    save(made, engine, TrainState(5))
    engine.error = OSError(number, os.strerror(number))
    save(made, engine, TrainState(10))
    assert made.failures == 1
    assert made.problem.startswith("step 10 was not saved: ")
    assert made.unsaved(10)
    engine.error = None
    save(made, engine, TrainState(15))
    assert (made.failures, made.problem) == (1, "")
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 15


def test_a_volume_that_never_could_be_written_is_the_specs_fault(tmp_path: Path) -> None:
    engine = FailingEngine()
    engine.error = OSError(errno.EROFS, "read-only file system")
    with pytest.raises(SpecError, match=r"spec.trainer.checkpoint.volume: cannot save to"):
        save(checkpoints(tmp_path), engine, TrainState(5))


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


def test_on_a_full_disk_training_goes_on_and_nothing_is_left_behind(
    small: Path, ranks: TrainerProcessGroup
) -> None:
    engine, made = Fsdp2Engine(setup(ranks)), checkpoints(small)
    engine.initialize()
    try:
        update_policy(engine, random_batch(seed=1), minibatches=1)
        save(made, engine, TrainState(5))
        filler = small / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(small).free - 1_000_000))
        save(made, engine, TrainState(10))
        assert made.failures == 1
        assert "step 10 was not saved" in made.problem
        left = [filler, checkpoint_path(small, 5)]
        assert sorted(small.glob("[!.]*")) == left
        assert not list(small.glob(".step*")), "no scratch is left"
        filler.unlink()
        save(made, engine, TrainState(15))
        assert made.problem == ""
        assert made.restore(engine).step == 15
    finally:
        engine.close()


def test_a_volume_that_becomes_read_only_does_not_end_training(
    small: Path, ranks: TrainerProcessGroup
) -> None:
    engine, made = Fsdp2Engine(setup(ranks)), checkpoints(small)
    engine.initialize()
    try:
        update_policy(engine, random_batch(seed=1), minibatches=1)
        save(made, engine, TrainState(5))
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        save(made, engine, TrainState(10))
        assert "Read-only file system" in made.problem
        assert checkpoints(small).restore(engine).step == 5
    finally:
        engine.close()


class HungVolume:
    """A file system whose fsync blocks, as every call on a hung NFS mount does, until `release`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hangs, self.blocked, self.released = True, threading.Event(), threading.Event()
        monkeypatch.setattr(files, "os", self)

    def fsync(self, descriptor: int) -> None:
        if self.hangs:
            self.blocked.set()
            assert self.released.wait(60)
        os.fsync(descriptor)

    def release(self) -> None:
        self.hangs = False
        self.released.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungVolume]:
    volume = HungVolume(monkeypatch)
    yield volume
    volume.release()


def test_a_save_to_a_hung_volume_does_not_hold_up_training(
    tmp_path: Path,
    hung: HungVolume,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    ranks: TrainerProcessGroup,
) -> None:
    """And what was copied is saved whole when the volume answers again."""
    monkeypatch.setattr(checkpointer, "PATIENCE_SECONDS", 0.1)
    engine, made = Fsdp2Engine(setup(ranks)), checkpoints(tmp_path)
    engine.initialize()
    try:
        before = {name: tensor.clone() for name, tensor in engine.named_weights()}
        made.save(engine, TrainState(5))
        assert hung.blocked.wait(10)
        update_policy(engine, random_batch(seed=1), minibatches=1)
        assert not made.problem, "the save is only slow so far"
        made.save(engine, TrainState(10))
        assert made.problem.startswith("step 10 was not saved: the save of step 5 has run for ")
        assert made.problem.endswith("s; is the volume hung?")
        assert made.failures == 1
        assert "training continues" in caplog.text
        assert list_checkpoints(tmp_path) == [], "nothing is there before it is whole"
        hung.release()
        assert made.wait(10)
        assert made.problem == ""
        assert made.restore(engine).step == 5
        after = dict(engine.named_weights())
        assert all(torch.equal(before[name], after[name]) for name in before), "of step 5 alone"
        save(made, engine, TrainState(15))
        assert (made.failures, made.problem) == (1, "")
    finally:
        engine.close()


def test_the_end_of_training_waits_for_a_hung_volume_no_longer_than_its_bound(
    tmp_path: Path, hung: HungVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "FINAL_SECONDS", 0.1)
    monkeypatch.setattr(checkpointer, "PATIENCE_SECONDS", 0.1)
    engine, made = CountingEngine(), checkpoints(tmp_path)
    made.save(engine, TrainState(5))
    assert hung.blocked.wait(10)
    made.finish(engine, TrainState(8))
    assert made.problem.startswith("step 8 was not saved: the save of step 5 has run for ")
    assert made.failures == 1


def test_a_save_that_is_due_waits_for_a_slow_one(tmp_path: Path, hung: HungVolume) -> None:
    engine, made = CountingEngine(), checkpoints(tmp_path)
    made.save(engine, TrainState(5))
    assert hung.blocked.wait(10)
    threading.Timer(0.2, hung.release).start()
    save(made, engine, TrainState(10))
    assert (made.failures, made.problem) == (0, "")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010", "step-00000005"]


def test_the_last_step_is_saved_at_the_end_and_only_once(tmp_path: Path) -> None:
    engine, made = CountingEngine(), checkpoints(tmp_path)
    made.save(engine, TrainState(5))
    made.finish(engine, TrainState(5))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000005"]
    made.finish(engine, TrainState(7))
    assert not made.unsaved(7)
    assert checkpoints(tmp_path).restore(CountingEngine()).step == 7


def test_a_checkpoint_holds_the_weights_of_its_step_although_training_continues(
    tmp_path: Path, ranks: TrainerProcessGroup
) -> None:
    engine = Fsdp2Engine(setup(ranks))
    engine.initialize()
    try:
        before = {name: tensor.clone() for name, tensor in engine.named_weights()}
        write = engine.prepare_checkpoint(tmp_path / "step-1", state={})
        update_policy(engine, random_batch(seed=1), minibatches=1)
        write()
        engine.load_checkpoint(tmp_path / "step-1")
        after = dict(engine.named_weights())
        assert all(torch.equal(before[name], after[name]) for name in before)
    finally:
        engine.close()
