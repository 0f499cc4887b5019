"""The cache shows whole things only, whatever happened to those who made them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hack.cluster import cache
from hack.cluster.errors import ClusterError

REPOSITORY_ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLCALL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_its_own_variable_it_follows_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ROLLCALL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "rollcall"


def test_a_thing_appears_when_it_is_whole(own: Path) -> None:
    target = own / "bin" / "tool"
    with cache.fresh(target) as made:
        made.write_text("half")
        assert not target.exists()
        made.write_text("whole")
    assert target.read_text() == "whole"


def test_a_failure_leaves_what_was_there(own: Path) -> None:
    target = own / "tool"
    with cache.fresh(target) as made:
        made.write_text("old")
    with suppress(RuntimeError), cache.fresh(target) as made:
        made.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list((own / "tmp").iterdir()) == []


def test_a_folder_replaces_a_folder(own: Path) -> None:
    for text in ("old", "new"):
        with cache.fresh(own / "folder") as made:
            made.mkdir()
            (made / "file").write_text(text)
    assert (own / "folder" / "file").read_text() == "new"


def test_leftovers_of_the_dead_are_swept_and_those_of_the_living_are_not(own: Path) -> None:
    with cache.scratch() as mine:
        dead = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"],
            capture_output=True,
            text=True,
            check=True,
        )
        leftover = own / "tmp" / f"{dead.stdout.strip()}.abc"
        leftover.mkdir()
        (leftover / "half").write_text("made")
        cache.sweep()
        assert mine.exists()
        assert not leftover.exists()


def test_a_lock_keeps_other_processes_out() -> None:
    with cache.lock("thing"):
        other = subprocess.run(
            [
                sys.executable,
                "-c",
                "from hack.cluster import cache\nwith cache.lock('thing', wait_s=0): pass",
            ],
            cwd=REPOSITORY_ROOT,
            env={**os.environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "another process holds" in other.stderr
    with cache.lock("thing", wait_s=0):
        pass


def test_names_of_recipes_differ_with_every_part() -> None:
    assert cache.digest("a", "bc") != cache.digest("ab", "c")
    assert cache.digest("a", "b") == cache.digest("a", "b")


def test_a_lock_that_is_held_too_long_is_an_error() -> None:
    with (
        cache.lock("thing"),
        pytest.raises(ClusterError, match="wait for it"),
        cache.lock("thing", wait_s=0),
    ):
        pass
