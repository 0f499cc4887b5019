"""Saves with the planner and the files of torch.distributed.checkpoint, and without its pickles.

torch's own `save` sends plans and results from rank to rank as pickles. Here they travel as JSON:
each rank plans, rank 0 decides who writes what of which several ranks have the same, each writes
its share, and rank 0 writes the metadata. The files are the same.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from rollcall_runtime.train.checkpoint.byte_exchange import collect, hand_out
from rollcall_runtime.train.checkpoint.plan_messages import (
    RankPlan,
    RankShare,
    Written,
    check_agreement,
    from_bytes,
    to_bytes,
)
from rollcall_runtime.train.collective_errors import raise_on_all_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan

    from rollcall_runtime.train.process_group import TrainerProcessGroup


def save_planned(tensors: dict[str, Any], folder: Path, group: TrainerProcessGroup) -> None:
    """Collective, in the group of checkpoint threads. Write `tensors` (nested, sharded).

    OSError on all ranks if any of them fails; its errno is EIO where the cause has none.
    """
    save = _PlannedSave(tensors, folder, group)
    plans = collect(group, save.plan())
    share = hand_out(group, save.shares(plans))
    written = collect(group, save.write(share))
    save.finish(written)


class _PlannedSave:
    """The four steps, each of which fails on all ranks or on none; messages are their results."""

    def __init__(self, tensors: dict[str, Any], folder: Path, group: TrainerProcessGroup) -> None:
        self._tensors, self._folder, self._group = tensors, folder, group
        self._planner, self._writer = DefaultSavePlanner(), FileSystemWriter(folder)
        self._own: SavePlan
        self._all: list[SavePlan] = []  # what each rank writes; on rank 0 alone
        self._metadata: Metadata

    def plan(self) -> bytes:
        with self._together():
            leads = self._group.rank == 0
            self._planner.set_up_planner(
                self._tensors, self._writer.storage_meta(), is_coordinator=leads
            )
            self._writer.set_up_storage_writer(leads)
            self._own = self._writer.prepare_local_plan(self._planner.create_local_plan())
            return to_bytes(RankPlan.of(self._own))

    def shares(self, messages: list[bytes]) -> list[bytes]:
        """On rank 0 a message for each rank, on the others nothing."""
        shares: list[RankShare] = []
        with self._together():
            plans = [from_bytes(RankPlan, text, rank=rank) for rank, text in enumerate(messages)]
            if plans:
                check_agreement(plans)
                local = [plan.save_plan() for plan in plans]
                # A list of its own: torch 2.6 changes the one that it is given.
                self._all, self._metadata = self._planner.create_global_plan(list(local))
                shares = [
                    RankShare.of(plan, planned)
                    for plan, planned in zip(self._all, local, strict=True)
                ]
        return [to_bytes(share) for share in shares]

    def write(self, message: bytes) -> bytes:
        with self._together():
            share = from_bytes(RankShare, message, rank=0).select(self._own)
            # torch names the files of a rank by its place in this list.
            everyone = [share] * self._group.size
            prepared = self._writer.prepare_global_plan(everyone)[self._group.rank]
            plan = self._planner.finish_plan(prepared)
            writing = self._writer.write_data(plan, self._planner)
            writing.wait()
            return to_bytes(Written.of(writing.value(), plan))

    def finish(self, messages: list[bytes]) -> None:
        with self._together():
            results = [
                from_bytes(Written, text, rank=rank).results(self._all[rank], rank=rank)
                for rank, text in enumerate(messages)
            ]
            if results:
                self._writer.finish(self._metadata, results)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """OSError on all ranks for whatever one raises."""
        with raise_on_all_ranks(self._group.gather_for_checkpoint):
            try:
                yield
            except OSError as error:
                problem = f"{error.strerror or error}: {self._folder}"
                raise OSError(error.errno or errno.EIO, problem) from error
            except Exception as error:
                # torch's writer loses the errno of what could not be written.
                problem = f"{type(error).__name__}: {error}"
                raise OSError(errno.EIO, problem) from error
