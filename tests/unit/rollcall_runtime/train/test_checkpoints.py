"""A checkpoint is there as a whole or not at all."""

from pathlib import Path

import pytest

from rollcall_runtime.train.checkpoints import (
    begin_checkpoint,
    checkpoint_path,
    commit_checkpoint,
    latest_checkpoint,
    prune_checkpoints,
    read_state,
    scratch_path,
)


def save(root: Path, step: int, content: str = "") -> Path:
    path = checkpoint_path(root, step)
    begin_checkpoint(path)
    (scratch_path(path) / "weights").write_text(content, encoding="utf-8")
    commit_checkpoint(path, state={"step": step})
    return path


def test_the_newest_is_found_by_its_number_and_not_by_its_age(tmp_path: Path) -> None:
    root = tmp_path / "not yet there"
    assert latest_checkpoint(root) is None
    save(root, 100)
    save(root, 20)
    assert latest_checkpoint(root) == checkpoint_path(root, 100)
    assert read_state(checkpoint_path(root, 100)) == {"step": 100}


def test_one_that_was_not_committed_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    begin_checkpoint(checkpoint_path(tmp_path, 2))
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 1)


def test_the_next_try_removes_what_a_broken_one_left(tmp_path: Path) -> None:
    begin_checkpoint(checkpoint_path(tmp_path, 1))
    (scratch_path(checkpoint_path(tmp_path, 1)) / "half").write_text("x", encoding="utf-8")
    path = save(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 1, "old")
    path = save(tmp_path, 1, "new")
    assert (path / "weights").read_text(encoding="utf-8") == "new"
    assert sorted(tmp_path.iterdir()) == [path]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in (5, 10, 15)]
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(tmp_path.iterdir()) == paths[1:]
    with pytest.raises(ValueError, match="at least one"):
        prune_checkpoints(tmp_path, keep=0)
