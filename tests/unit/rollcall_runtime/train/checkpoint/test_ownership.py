"""Only the trainer that resumed last may write checkpoints."""

import errno
import json
import os
from pathlib import Path

import pytest

from rollcall_runtime.train.checkpoint.ownership import claim
from rollcall_runtime.worker.errors import FencedError


def test_a_trainer_that_lost_its_claim_never_gets_it_back(tmp_path: Path) -> None:
    root = tmp_path / "not yet there"
    claim(root, "old")
    claim(root, "old")
    claim(root, "new")
    with pytest.raises(FencedError, match="belong to pod new, which"):
        claim(root, "old")
    claim(root, "newest")
    for passed_over in ("old", "new"):
        with pytest.raises(FencedError, match="belong to pod newest, which"):
            claim(root, passed_over)
    claim(root, "newest")


def test_the_list_stays_short_and_keeps_the_last(tmp_path: Path) -> None:
    for number in range(300):
        claim(tmp_path, f"pod-{number}")
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 4096
    with pytest.raises(FencedError):
        claim(tmp_path, "pod-298")


def test_a_crash_in_mid_claim_leaves_the_owner_as_it_was(tmp_path: Path) -> None:
    claim(tmp_path, "old")
    (tmp_path / ".owners.new").write_text("[")
    claim(tmp_path, "old")
    claim(tmp_path, "new")
    with pytest.raises(FencedError):
        claim(tmp_path, "old")


@pytest.mark.parametrize("text", ["", "[", "7", "\xff"])
def test_a_damaged_list_is_nobodys_permission(tmp_path: Path, text: str) -> None:
    (tmp_path / ".owners").write_text(text, encoding="latin-1")
    with pytest.raises(OSError, match="is damaged"):
        claim(tmp_path, "old")


def test_a_claim_is_on_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(tmp_path, "old")

    def failing(descriptor: int) -> None:
        assert json.loads(Path(f"/proc/self/fd/{descriptor}").read_text()) == ["old", "new"]
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            claim(tmp_path, "new")
    claim(tmp_path, "old")
