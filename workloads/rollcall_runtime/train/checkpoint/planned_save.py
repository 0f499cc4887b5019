"""Saves with the planner and the files of torch.distributed.checkpoint, and without its pickles.

torch's own `save` sends plans and results from rank to rank as pickles. Here they travel as JSON:
each rank plans, rank 0 decides who writes what of which several ranks have the same, each writes
its share, and rank 0 writes the metadata. The files are the same.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

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
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan

    from rollcall_runtime.train.process_group import TrainerProcessGroup

MAX_BYTES = 256 << 20
"""From or to one rank: the plan of a million tensors."""


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


def collect(group: TrainerProcessGroup, data: bytes) -> list[bytes]:
    """Collective. Every rank's `data`, in their order, on rank 0; nothing on the others.

    OSError on all ranks if one of them has nothing or more than MAX_BYTES.
    """
    lengths = group.gather_for_checkpoint(len(data))
    _check(lengths, group.size)
    if group.rank > 0:
        dist.send(_tensor(data), dst=0, group=group.checkpoint_group)
        return []
    others = range(1, group.size)
    return [data, *(_receive(group, lengths[rank], source=rank) for rank in others)]


def hand_out(group: TrainerProcessGroup, parts: Sequence[bytes]) -> bytes:
    """Collective. This rank's one of the `parts` that rank 0 gives, one for each rank.

    OSError on all ranks if one of them is empty or has more than MAX_BYTES.
    """
    lengths = group.gather_for_checkpoint([len(part) for part in parts])[0]
    _check(lengths, group.size)
    if group.rank > 0:
        return _receive(group, lengths[group.rank], source=0)
    for rank in range(1, group.size):
        dist.send(_tensor(parts[rank]), dst=rank, group=group.checkpoint_group)
    return parts[0]


def _check(lengths: Any, size: int) -> None:
    """All ranks see the same lengths, so that none is left alone."""
    right = isinstance(lengths, list) and len(lengths) == size
    if not right or not all(type(n) is int and 0 < n <= MAX_BYTES for n in lengths):
        problem = f"of {size} ranks each may send 1 to {MAX_BYTES} bytes, not {lengths!s:.200}"
        raise OSError(errno.EMSGSIZE, problem)


def _receive(group: TrainerProcessGroup, length: int, *, source: int) -> bytes:
    data = torch.empty(length, dtype=torch.uint8)
    dist.recv(data, src=source, group=group.checkpoint_group)
    return data.numpy().tobytes()


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
