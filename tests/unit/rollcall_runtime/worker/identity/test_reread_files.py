"""Mounted files are read again when they change."""

from pathlib import Path

import pytest

from rollcall_runtime.worker.identity.reread_files import LOOK_SECONDS, RereadFiles


class Mounted:
    """A file with a number, and how often it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.reads = path, 0.0, 0
        path.write_text("1")
        self.files = RereadFiles((path,), self._read, clock=lambda: self.now)

    def _read(self) -> int:
        self.reads += 1
        return int(self.path.read_text())

    def after_a_while(self) -> int:
        self.now += LOOK_SECONDS
        return self.files.current()


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "number")


def test_a_new_content_is_read_once(mounted: Mounted) -> None:
    assert mounted.after_a_while() == 1
    mounted.path.write_text("22")
    assert mounted.after_a_while() == 22
    assert mounted.after_a_while() == 22
    assert mounted.reads == 2


def test_it_is_not_looked_at_all_the_time(mounted: Mounted) -> None:
    mounted.path.write_text("22")
    mounted.now += LOOK_SECONDS / 2
    assert mounted.files.current() == 1


@pytest.mark.parametrize("change", ["no number", None])
def test_what_cannot_be_used_leaves_the_former_content(
    mounted: Mounted, change: str | None
) -> None:
    if change is None:
        mounted.path.unlink()
    else:
        mounted.path.write_text(change)
    assert mounted.after_a_while() == 1
    mounted.path.write_text("333")
    assert mounted.after_a_while() == 333


def test_the_first_read_must_work(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RereadFiles((tmp_path / "none",), lambda: 1)
