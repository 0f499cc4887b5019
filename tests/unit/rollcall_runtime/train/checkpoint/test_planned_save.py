"""Two ranks save and load as torch does, send no pickles, and fail together."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save

from rollcall_runtime.train.checkpoint.plan_messages import (
    RankPlan,
    RankShare,
    from_bytes,
    to_bytes,
)
from rollcall_runtime.train.checkpoint.planned_save import _PlannedSave, save_planned
from rollcall_runtime.train.process_group import TrainerProcessGroup
from tests.unit.rollcall_runtime.train.checkpoint import saving_ranks
from tests.unit.rollcall_runtime.train.checkpoint.test_plan_messages import local_plan
from tests.unit.rollcall_runtime.train.two_processes import run_two_ranks

SECONDS = 100  # for both processes, imports included
Reports = list[dict[str, str]]

ERRORS = {
    "one_cannot_load": "Missing key in checkpoint state_dict: model.other",
    "one_cannot_read": "FileNotFoundError: [Errno 2] No such file or directory: ",
    "one_has_something_that_is_not_saved": "odd has the form (torch.sparse_coo",
    "one_cannot_write": "OSError: [Errno 28] No space left on device: ",
    "one_has_a_tensor_of_another_size": "ranks 0 and 1 differ on what w is",
    "the_first_cannot_write_metadata": "OSError: [Errno 28] No space left on device: ",
    "one_sends_a_plan_that_is_none": "rank 1: RankPlan.items[0].tensor: expected an object",
    "one_sends_what_is_too_long": "each may send 1 to 100 bytes, not [",
    "the_first_gives_a_share_that_is_none": "place 99 of a plan of 1 items",
    "one_says_it_wrote_anothers_file": "'__0_0.distcp' is no name of a file of rank 1",
    "one_says_it_wrote_outside": "'../__1_0.distcp' is no name of a file of rank 1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left behind: checkpoints and their reports."""
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(saving_ranks.main, folder, seconds=SECONDS)
    return folder


@pytest.fixture(scope="module")
def reports(folder: Path) -> Reports:
    return [json.loads((folder / saving_ranks.REPORT.format(n)).read_text()) for n in range(2)]


def metadata(path: Path) -> Metadata:
    found: Metadata = pickle.loads((path / ".metadata").read_bytes())  # noqa: S301 - written here
    return found


def assert_same_checkpoints(one: Path, other: Path) -> None:
    """The same files of the same bytes, and the same metadata but for ids and paths of saves."""
    ours, theirs = metadata(one), metadata(other)
    for field in ("state_dict_metadata", "planner_data", "storage_data", "version"):
        assert getattr(ours, field) == getattr(theirs, field), field
    hints = [
        {key: key.index for key in found.storage_data} for found in (ours, theirs)
    ]  # equality of keys ignores them
    assert hints[0] == hints[1]
    assert contents(one) == contents(other)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.distcp")}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_one_rank_writes_what_torch_writes(ranks: TrainerProcessGroup, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "model": {"w": torch.arange(6.0).bfloat16().view(2, 3), "empty": torch.zeros(0)},
        "optimizer": {"param_groups": [{"lr": 0.5, "betas": (0.9, 0.95)}]},
    }
    save_planned(values, tmp_path / "ours", ranks)
    save(values, checkpoint_id=tmp_path / "torch's", no_dist=True)
    assert len(metadata(tmp_path / "ours").state_dict_metadata) == 4
    assert_same_checkpoints(tmp_path / "ours", tmp_path / "torch's")


@pytest.mark.slow
def test_shares_are_of_what_a_rank_planned_although_torch_2_6_changes_the_plans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = {"a": torch.zeros(4), "b": torch.zeros(3), "c": torch.zeros(2)}
    own = local_plan({"model": both})
    make = DefaultSavePlanner.create_global_plan

    def change(self: DefaultSavePlanner, plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        made, metadata = make(self, list(plans))
        plans[:] = made  # as torch 2.6 does
        return made, metadata

    monkeypatch.setattr(DefaultSavePlanner, "create_global_plan", change)
    group = SimpleNamespace(rank=0, size=2, gather_for_checkpoint=lambda value: [value, value])
    save = _PlannedSave({"model": both}, tmp_path, cast("TrainerProcessGroup", group))
    message = to_bytes(RankPlan.of(own))
    shares = [from_bytes(RankShare, text, rank=0) for text in save.shares([message, message])]
    written = [[item.index.fqn for item in share.select(own).items] for share in shares]
    assert written == [[item.index.fqn for item in plan.items] for plan in save._all]
    assert sorted(name for names in written for name in names) == ["model.a", "model.b", "model.c"]
    assert all(written), "each has a part, or nothing could be out of place"


def test_no_pickles_travel_between_ranks_that_save(reports: Reports) -> None:
    assert [report["we_save"] for report in reports] == ["", ""]


@pytest.mark.slow
def test_ranks_write_what_torch_writes(folder: Path, reports: Reports) -> None:
    assert [report["torch_saves"] for report in reports] == ["", ""]
    ours, theirs = folder / saving_ranks.OURS, folder / saving_ranks.THEIRS
    assert contents(ours).keys() == {"__0_0.distcp", "__1_0.distcp"}
    assert_same_checkpoints(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["we_load_both", "torch_loads_ours"])
def test_each_reads_what_the_other_saved(reports: Reports, step: str) -> None:
    assert [report[step] for report in reports] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize("step", ERRORS)
def test_what_fails_on_one_rank_fails_on_all(reports: Reports, step: str) -> None:
    assert ERRORS[step] in reports[0][step]
    assert reports[1][step] == reports[0][step]


@pytest.mark.slow
def test_ranks_save_again_after_failures(reports: Reports) -> None:
    assert [report["all_is_well_again"] for report in reports] == ["", ""]
