"""The folder of a run: one process at a time, of the format that this version knows."""

import errno
import os
import stat
from pathlib import Path

import pytest
import yaml

from rollcall_local.state_folder import FORMAT, StateFolder, StateFolderError, home


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "runs" / "reverse")


def test_a_second_start_is_refused_while_the_first_goes_on(folder: StateFolder) -> None:
    folder.hold()
    with pytest.raises(StateFolderError, match=r"reverse runs already \(process \d+\).*--name"):
        StateFolder(folder.path).hold()


def test_who_holds_a_folder_is_known_while_it_is_held(folder: StateFolder) -> None:
    assert folder.holder() is None
    folder.hold()
    assert StateFolder(folder.path).holder() is not None
    folder.release()
    assert StateFolder(folder.path).holder() is None


def test_a_folder_of_another_format_is_left_alone(folder: StateFolder) -> None:
    folder.hold()
    folder.release()
    (folder.path / "format.json").write_text(f'{{"format": {FORMAT + 1}}}')
    with pytest.raises(StateFolderError, match=f"of format {FORMAT + 1}.*knows {FORMAT}"):
        folder.hold()


def test_a_damaged_format_is_named(folder: StateFolder) -> None:
    folder.hold()
    folder.release()
    (folder.path / "format.json").write_text("{")
    with pytest.raises(StateFolderError, match=r"format.json cannot be read"):
        folder.hold()


def test_a_start_that_is_killed_as_it_writes_the_format_leaves_none(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(RuntimeError, match="killed"):
            folder.hold()
    assert not (folder.path / "format.json").exists()
    folder.release()
    folder.hold()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateFolderError, match="ROLLCALL_LOCAL_HOME"):
        StateFolder(tmp_path / "file" / "reverse").hold()


def test_a_full_disk_is_named(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StateFolderError, match="No space left on device; see ROLLCALL_LOCAL_HOME"):
        folder.hold()


def test_the_kubeconfig_is_for_its_owner_alone(folder: StateFolder) -> None:
    folder.hold()
    folder.write_kubeconfig(server="https://127.0.0.1:1", token="secret", authority="PEM")
    assert stat.S_IMODE(folder.kubeconfig.stat().st_mode) == 0o600
    found = yaml.safe_load(folder.kubeconfig.read_text())
    assert found["users"][0]["user"]["token"] == "secret"


def test_the_place_of_all_runs_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert home() == Path("/state/rollcall/local")
    monkeypatch.setenv("ROLLCALL_LOCAL_HOME", "/here")
    assert home() == Path("/here")
