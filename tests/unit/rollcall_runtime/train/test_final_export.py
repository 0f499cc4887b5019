"""Whether the model can be exported is known before the first step."""

from pathlib import Path

import pytest

from rollcall_runtime.train.final_export import FinalExport
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks

STEPS = 5


def export(folder: Path | str, *, rank: int = 0, said: list[object] | None = None) -> FinalExport:
    return FinalExport(
        str(folder), last_step=STEPS, ranks=as_ranks(FakeRanks(rank=rank, said=said or []))
    )


def test_a_folder_that_is_there_is_refused_until_training_is_over(tmp_path: Path) -> None:
    problem = r"^spec.trainer.exportPath: '.*' is there already; name a new folder"
    with pytest.raises(SpecError, match=problem):
        export(tmp_path).check(STEPS - 1)
    export(tmp_path).check(STEPS)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=r"cannot make '.*file/models': .*; name a folder on a"):
        export(tmp_path / "file" / "models" / "chat").check(0)


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SpecError, match=r"cannot be written to; name a folder on a volume"):
        export(tmp_path / "chat").check(0)


def test_what_rank_0_finds_is_said_on_every_rank(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^spec.trainer.exportPath: is there already$"):
        export(tmp_path / "new", rank=1, said=["is there already"]).check(0)


def test_no_folder_asks_nothing_of_anyone() -> None:
    export("").check(0)
