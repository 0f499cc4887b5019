"""A checkpoint is there as a whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall_runtime.train.checkpoint.files import (
    TornError,
    begin_checkpoint,
    check_checkpoint,
    checkpoint_path,
    commit_checkpoint,
    digest_files,
    list_checkpoints,
    mend_checkpoints,
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


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def rewrite(file: Path, old: str, new: str) -> None:
    """Another text of the same form and length."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


DAMAGE = {
    "state cut short": lambda path: os.truncate(path / "state.json", 20),
    "state empty": lambda path: os.truncate(path / "state.json", 0),
    "state changed": lambda path: flip(path / "state.json"),
    "state of another step": lambda path: rewrite(path / "state.json", '"step": 1', '"step": 9'),
    "no state": lambda path: (path / "state.json").unlink(),
    "file missing": lambda path: (path / "weights").unlink(),
    "file cut short": lambda path: os.truncate(path / "weights", 3),
    "file changed": lambda path: flip(path / "weights"),
}


def test_they_are_listed_by_their_numbers_and_not_by_their_age(tmp_path: Path) -> None:
    root = tmp_path / "not yet there"
    assert list_checkpoints(root) == []
    save(root, 100)
    save(root, 20)
    assert list_checkpoints(root) == [checkpoint_path(root, 100), checkpoint_path(root, 20)]
    assert read_state(checkpoint_path(root, 100)) == {"step": 100}


def test_one_that_was_not_committed_is_not_there(tmp_path: Path) -> None:
    save(tmp_path, 1)
    begin_checkpoint(checkpoint_path(tmp_path, 2))
    assert list_checkpoints(tmp_path) == [checkpoint_path(tmp_path, 1)]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_detected(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = save(tmp_path, 1, "content")
    check_checkpoint(path)
    damage(path)
    with pytest.raises(TornError):
        check_checkpoint(path)


def test_each_rank_checks_its_share_of_the_files(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    begin_checkpoint(path)
    for rank in range(2):
        (scratch_path(path) / f"shard-{rank}").write_text("content", encoding="utf-8")
        digest_files(path, [f"shard-{rank}"], rank=rank)
    commit_checkpoint(path, state={})
    assert sorted(file.name for file in path.iterdir()) == ["shard-0", "shard-1", "state.json"]
    flip(path / "shard-1")
    check_checkpoint(path, part=0, of=2)
    with pytest.raises(TornError, match="shard-1 has another checksum"):
        check_checkpoint(path, part=1, of=2)


def test_values_of_any_json_type_keep_their_checksum(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    begin_checkpoint(path)
    state = {"by number": {2: [0.1, None], 10: ()}, "text": "ä"}
    commit_checkpoint(path, state=state)
    assert read_state(path) == {"by number": {"2": [0.1, None], "10": []}, "text": "ä"}


@pytest.mark.parametrize(("staged", "kept"), [("nothing", "old"), ("new", "new"), ("torn", "old")])
def test_a_commit_broken_between_its_renames_is_mended(
    tmp_path: Path, staged: str, kept: str
) -> None:
    """A crash while step 1 was saved a second time: the first one is aside, the second in wait."""
    path = save(tmp_path, 1, "old")
    aside = path.rename(tmp_path / ".step-00000001.old")
    if staged != "nothing":
        save(tmp_path / "elsewhere", 1, "new").rename(scratch_path(path))
    if staged == "torn":
        os.truncate(scratch_path(path) / "weights", 1)
    mend_checkpoints(tmp_path)
    check_checkpoint(path)
    assert (path / "weights").read_text(encoding="utf-8") == kept
    assert aside.exists() == (kept == "new"), "the next save removes it"
    save(tmp_path, 2)
    assert not aside.exists()


class Crash(BaseException):
    """The machine loses power: no clean-up runs."""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_crash_while_a_step_is_saved_again_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """The machine crashes after so many renames."""
    path = save(tmp_path, 1, "old")
    left, rename = renames, Path.rename

    def crashing(source: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        return rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", crashing)
        with pytest.raises(Crash):
            save(tmp_path, 1, "new")
    mend_checkpoints(tmp_path)
    check_checkpoint(path)
    assert (path / "weights").read_text(encoding="utf-8") == ("new" if renames else "old")


def test_a_commit_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any other order a power failure leaves a checkpoint without some of its contents."""
    done: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def recorded_fsync(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        if file.is_file():
            json.loads(file.read_text(encoding="utf-8"))  # nothing of it is left in a buffer
        done.append(f"fsync {file.name}")
        fsync(descriptor)

    def recorded_rename(source: Path, target: Path) -> Path:
        done.append(f"rename {source.name} {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    save(tmp_path, 1)
    assert done == [
        "fsync state.json",
        "fsync .step-00000001.new",
        "rename .step-00000001.new step-00000001",
        f"fsync {tmp_path.name}",
    ]


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
    prune_checkpoints(tmp_path, keep=2, newest=paths[-1])
    assert sorted(tmp_path.iterdir()) == paths[1:]
    with pytest.raises(ValueError, match="at least one"):
        prune_checkpoints(tmp_path, keep=0, newest=paths[-1])


def test_a_torn_one_is_not_kept_for_a_whole_one(tmp_path: Path) -> None:
    """Steps 10 and 20 were damaged, so training went on from 5 and has saved 15.

    Step 20 still looks whole: its file has the right length.
    """
    whole, torn, newest, ahead = (save(tmp_path, step, "content") for step in (5, 10, 15, 20))
    os.truncate(torn / "weights", 3)
    flip(ahead / "weights")
    prune_checkpoints(tmp_path, keep=2, newest=newest)
    assert sorted(tmp_path.iterdir()) == [whole, newest]


def test_links_and_files_in_the_place_of_folders_are_passed_over_and_removed_alone(
    tmp_path: Path,
) -> None:
    root, others = tmp_path / "root", tmp_path / "others"
    others.mkdir()
    (others / "kept").write_text("of another job", encoding="utf-8")
    root.mkdir()
    (root / "step-00000001").symlink_to(others)
    (root / "step-00000008").symlink_to("step-00000008")
    (root / "step-00000009").write_text("a file", encoding="utf-8")
    scratch_path(checkpoint_path(root, 2)).symlink_to(others)
    scratch_path(checkpoint_path(root, 3)).write_text("a file", encoding="utf-8")
    for path in list_checkpoints(root):
        with pytest.raises(TornError, match=r"state\.json cannot be read"):
            check_checkpoint(path)
    mend_checkpoints(root)
    newest = save(root, 4)
    prune_checkpoints(root, keep=2, newest=newest)
    assert [path.name for path in sorted(root.iterdir())] == ["step-00000004"]
    assert [path.name for path in others.iterdir()] == ["kept"]
