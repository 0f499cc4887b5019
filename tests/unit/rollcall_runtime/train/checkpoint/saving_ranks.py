"""What each of two ranks does in test_planned_save: runs in a process of its own.

Each step leaves its outcome: what a rank raised, or nothing, in REPORT of its number.
"""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import pytest
import torch
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from rollcall_runtime.train.checkpoint import planned_save
from rollcall_runtime.train.checkpoint.distributed_save import load_tensors, prepare_save
from rollcall_runtime.train.checkpoint.plan_messages import RankPlan, RankShare, Written, to_bytes
from rollcall_runtime.train.checkpoint.planned_save import save_planned
from rollcall_runtime.train.process_group import TrainerProcessGroup, TrainerRendezvous

REPORT = "report-{}.json"
OURS, THEIRS, SEALED = "ours", "torch's", "step-00000001"


class Unsaveable:
    """A value that cannot be written."""

    def __reduce__(self) -> Never:
        raise OSError(28, "No space left on device")


def tensors(ranks: TrainerProcessGroup, *, zero: bool = False) -> dict[str, Any]:
    """Sharded unevenly, replicated, plain, and of another kind; `zero`: to be loaded into."""
    mesh = ranks.mesh(shard=ranks.size)
    whole = torch.arange(15.0).view(5, 3)

    def spread(values: Tensor, *placements: Any) -> Any:
        return distribute_tensor(torch.zeros_like(values) if zero else values, mesh, placements)

    return {
        "model": {
            "a.weight": spread(whole, Shard(0)),
            "b.weight": spread(whole.bfloat16(), Shard(1)),
            "norm": spread(whole[0], Replicate()),
            "plain": torch.zeros(2) if zero else torch.tensor([1.0, 2.0]),
        },
        "optimizer": {
            "state": {"a.weight": {"step": torch.tensor(0.0 if zero else 7.0)}},
            "param_groups": [{"lr": 0.0 if zero else 0.5, "params": ["a.weight"]}],
        },
        f"own.{ranks.rank}": {"cpu": torch.full((4,), -1 if zero else ranks.rank)},
    }


def whole(values: Any) -> Any:
    """Nested tensors as lists of numbers."""
    if isinstance(values, dict):
        return {key: whole(value) for key, value in values.items()}
    if isinstance(values, DTensor):
        return values.full_tensor().tolist()
    return values.tolist() if isinstance(values, Tensor) else values


def forbid_objects(patch: pytest.MonkeyPatch) -> None:
    """Whatever sends or receives objects with torch.distributed raises."""

    def forbidden(*_: Any, **__: Any) -> Never:
        raise AssertionError("an object was sent")

    for name in ("_object_to_tensor", "_tensor_to_object"):
        patch.setattr(distributed_c10d, name, forbidden)


def allow_pickles(patch: pytest.MonkeyPatch) -> None:
    """For torch's own `save` and `load`."""
    patch.setattr(distributed_c10d, "_pickler", pickle.Pickler)
    patch.setattr(distributed_c10d, "_unpickler", pickle.Unpickler)


def outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - torch's own is no Exception
        return f"{type(error).__name__}: {error}"
    return ""


class Rank:
    """The steps; each is collective."""

    def __init__(self, ranks: TrainerProcessGroup, folder: Path) -> None:
        self._ranks, self._folder = ranks, folder
        self._second = ranks.rank == 1

    def torch_saves(self) -> None:
        path = self._folder / THEIRS
        with pytest.MonkeyPatch.context() as patch:
            allow_pickles(patch)
            save(
                tensors(self._ranks), checkpoint_id=path, process_group=self._ranks.checkpoint_group
            )

    def we_save(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            forbid_objects(patch)
            save_planned(tensors(self._ranks), self._folder / OURS, self._ranks)
            prepare_save(
                self._ranks, self._folder / SEALED, tensors=tensors(self._ranks), state={}
            )()

    def we_load_both(self) -> None:
        for name in (OURS, THEIRS, SEALED):
            found = tensors(self._ranks, zero=True)
            with pytest.MonkeyPatch.context() as patch:
                forbid_objects(patch)
                load_tensors(self._ranks, found, self._folder / name)
            assert whole(found) == whole(tensors(self._ranks)), name

    def torch_loads_ours(self) -> None:
        found = tensors(self._ranks, zero=True)
        with pytest.MonkeyPatch.context() as patch:
            allow_pickles(patch)
            load(found, checkpoint_id=self._folder / OURS)
        assert whole(found) == whole(tensors(self._ranks))

    def one_cannot_load(self) -> None:
        wanted = tensors(self._ranks, zero=True)
        if self._second:
            wanted["model"]["other"] = torch.zeros(1)
        load_tensors(self._ranks, wanted, self._folder / OURS)

    def one_cannot_read(self) -> None:
        name = "missing" if self._second else OURS
        load_tensors(self._ranks, tensors(self._ranks, zero=True), self._folder / name)

    def one_has_something_that_is_not_saved(self) -> None:
        added = {"odd": torch.eye(2).to_sparse()} if self._second else {}
        self._save(tensors(self._ranks) | added)

    def one_cannot_write(self) -> None:
        self._save(tensors(self._ranks) | ({"value": Unsaveable()} if self._second else {}))

    def one_has_a_tensor_of_another_size(self) -> None:
        self._save({"w": torch.zeros(2 + self._ranks.rank)})

    def the_first_cannot_write_metadata(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FileSystemWriter, "finish", lambda *_, **__: Unsaveable().__reduce__())
            self._save(tensors(self._ranks))

    def one_sends_a_plan_that_is_none(self) -> None:
        self._lie(RankPlan, b'{"items": [{"path": ["w"], "tensor": 3}]}')

    def one_sends_what_is_too_long(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rollcall_runtime.train.checkpoint.planned_save.MAX_BYTES", 100)
            self._save({"w" * (200 if self._second else 1): torch.zeros(1)})

    def the_first_gives_a_share_that_is_none(self) -> None:
        self._lie(RankShare, b'{"places": [99], "hints": [0]}', liar=0)

    def one_says_it_wrote_anothers_file(self) -> None:
        text = json.dumps({"items": [{"file": "__0_0.distcp", "offset": 0, "length": 9}]})
        self._lie(Written, text.encode())

    def one_says_it_wrote_outside(self) -> None:
        self._lie(Written, b'{"items": [{"file": "../__1_0.distcp", "offset": 0, "length": 9}]}')

    def all_is_well_again(self) -> None:
        self._save(tensors(self._ranks))

    def _save(self, values: dict[str, Any]) -> None:
        save_planned(values, self._folder / "failing", self._ranks)

    def _lie(self, kind: type, instead: bytes, *, liar: int = 1) -> None:
        """A save of one tensor that the ranks share, in which one sends `instead`."""
        mesh = self._ranks.mesh(shard=self._ranks.size)

        def message(honest: Any) -> bytes:
            lies = isinstance(honest, kind) and self._ranks.rank == liar
            return instead if lies else to_bytes(honest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planned_save, "to_bytes", message)
            self._save({"w": distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])})


def main(rank: int, port: int, folder: Path) -> None:
    """Do all steps; write REPORT."""
    meeting = TrainerRendezvous("127.0.0.1", port, rank, 2, secret="a-secret", timeout=30)
    ranks = TrainerProcessGroup(meeting)
    steps = Rank(ranks, folder)
    names = [name for name in vars(Rank) if not name.startswith("_")]
    report = {name: outcome(getattr(steps, name)) for name in names}
    (folder / REPORT.format(rank)).write_text(json.dumps(report))
    ranks.close()
