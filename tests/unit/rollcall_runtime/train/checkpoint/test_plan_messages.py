"""What ranks tell each other of a save is checked before it counts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from rollcall_runtime.train.checkpoint.plan_messages import (
    PlannedItem,
    PlannedTensor,
    RankPlan,
    RankShare,
    Written,
    WrittenItem,
    check_agreement,
    from_bytes,
    to_bytes,
)

SHARD = PlannedTensor(
    size=(4, 3),
    offsets=(2, 0),
    lengths=(2, 3),
    dtype="bfloat16",
    requires_grad=False,
    pinned=False,
    sharded=True,
)
ITEM = PlannedItem(("model", "a.weight"), SHARD)
VALUE = PlannedItem(("optimizer", "param_groups", 0, "lr"))


def local_plan(values: dict[str, Any]) -> SavePlan:
    planner = DefaultSavePlanner()
    planner.set_up_planner(values, is_coordinator=True)
    return planner.create_local_plan()


def test_a_plan_arrives_as_torch_made_it() -> None:
    plan = local_plan(
        {
            "model": {"w": torch.zeros(2, 3, dtype=torch.bfloat16), "scalar": torch.tensor(1.0)},
            "optimizer": {"param_groups": [{"lr": 0.5, "params": ["w"]}]},
        }
    )
    found = from_bytes(RankPlan, to_bytes(RankPlan.of(plan)), rank=1).save_plan()
    assert found == plan
    assert ("optimizer", "param_groups", 0, "lr") in found.planner_data.values()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"offsets": (3, 0)}, "2 elements from 3 on are not within 4"),
        ({"offsets": (-1, 0)}, "2 elements from -1 on are not within 4"),
        ({"lengths": (-1, 3)}, "-1 elements from 2 on"),
        ({"size": (4, 3, 1)}, "different numbers of dimensions"),
        ({"dtype": "load"}, "'load' is no dtype of torch"),
        ({"dtype": "nn.Module"}, "'nn.Module' is no dtype of torch"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SHARD, **wrong)


@pytest.mark.parametrize("path", [(), ("a", -1), ("a", True), ("a", None), ("a", ["b"]), (0.5,)])
def test_a_path_consists_of_names_and_numbers(path: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="names, and numbers from 0 on"):
        PlannedItem(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x04N.", r"not JSON"),
        (b"[" * 100_000, r"not JSON"),
        (b"{}", r"rank 3: RankPlan\.items: missing"),
        (b'{"items": [{"path": ["w"], "run": 1}]}', r"rank 3: RankPlan\.items\[0\]\.run: unknown"),
        (b'{"items": [{"path": [{}]}]}', r"rank 3: RankPlan\.items\[0\]: path must consist"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_field(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_bytes(RankPlan, data, rank=3)


def test_nothing_is_planned_twice() -> None:
    other = replace(ITEM, tensor=replace(SHARD, offsets=(0, 0)))
    RankPlan((ITEM, other)).save_plan()
    with pytest.raises(ValueError, match="in it twice"):
        RankPlan((ITEM, other, ITEM)).save_plan()


@pytest.mark.parametrize(
    "tensor",
    [
        None,
        replace(SHARD, size=(5, 3)),
        replace(SHARD, dtype="float32"),
        replace(SHARD, sharded=False),
    ],
)
def test_ranks_agree_on_what_a_name_stands_for(tensor: PlannedTensor | None) -> None:
    plans = [RankPlan((VALUE, ITEM)), RankPlan((replace(ITEM, tensor=tensor),))]
    with pytest.raises(ValueError, match=r"ranks 0 and 1 differ on what model\.a\.weight is"):
        check_agreement(plans)
    same = replace(ITEM, tensor=replace(SHARD, offsets=(0, 0)))
    check_agreement([RankPlan((VALUE, ITEM)), RankPlan((same,))])


def test_a_name_is_of_one_path() -> None:
    plans = [RankPlan((PlannedItem(path),)) for path in [("a", "b"), ("a.b",)]]
    with pytest.raises(ValueError, match=r"differ on what a\.b is"):
        check_agreement(plans)


def test_a_share_selects_from_the_ranks_own_plan() -> None:
    planned = RankPlan((VALUE, ITEM)).save_plan()
    share = from_bytes(RankShare, to_bytes(RankShare(places=(0, 1), hints=(-1, 2))), rank=0)
    found = share.select(planned)
    assert found == planned
    assert [item.index.index for item in found.items] == [None, 2]
    assert RankShare.of(found, planned) == share
    assert RankShare(places=(1,), hints=(2,)).select(planned).items == [planned.items[1]]
    assert RankShare(places=(), hints=()).select(planned).items == []


@pytest.mark.parametrize(
    ("places", "hints", "message"),
    [
        ((0, 1), (0,), "differ in number"),
        ((1, 0), (0, 0), "must ascend"),
        ((0, 0), (0, 0), "must ascend"),
        ((-1,), (0,), "must ascend"),
        ((0,), (-2,), "must not be below -1"),
        ((0, 2), (0, 0), "place 2 of a plan of 2 items"),
    ],
)
def test_a_share_that_cannot_be_is_refused(
    places: tuple[int, ...], hints: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RankShare(places, hints).select(RankPlan((VALUE, ITEM)).save_plan())


def test_what_was_written_is_about_the_items_of_the_share() -> None:
    plan = RankPlan((VALUE, ITEM)).save_plan()
    written = Written((WrittenItem("__7_0.distcp", 0, 5), WrittenItem("__7_1.distcp", 5, 12)))
    found = from_bytes(Written, to_bytes(written), rank=7).results(plan, rank=7)
    assert [result.index for result in found] == [item.index for item in plan.items]
    assert Written.of(found[::-1], plan) == written
    with pytest.raises(ValueError, match="it wrote 2 items, not its 1"):
        written.results(replace(plan, items=plan.items[:1]), rank=7)


@pytest.mark.parametrize(
    "file",
    ["__1_0.distcp", "__71_0.distcp", "../__7_0.distcp", "__7_0.distcp\n", ".metadata", "", "/x"],
)
def test_a_rank_names_its_own_files_alone(file: str) -> None:
    plan = RankPlan((VALUE,)).save_plan()
    with pytest.raises(ValueError, match="is no name of a file of rank 7"):
        Written((WrittenItem(file, 0, 1),)).results(plan, rank=7)


def test_bytes_that_cannot_hold_a_tensor_are_not_its_own() -> None:
    plan = RankPlan((ITEM,)).save_plan()  # 2 x 3 elements of 2 bytes
    Written((WrittenItem("__0_0.distcp", 0, 12),)).results(plan, rank=0)
    with pytest.raises(ValueError, match="11 bytes cannot hold model"):
        Written((WrittenItem("__0_0.distcp", 0, 11),)).results(plan, rank=0)


@pytest.mark.parametrize("place", [{"offset": -1, "length": 0}, {"offset": 0, "length": -1}])
def test_places_in_files_are_not_negative(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        WrittenItem("__0_0.distcp", **place)
