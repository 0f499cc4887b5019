"""Saving with torch.distributed.checkpoint so that all ranks agree on how it went."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import save

from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.collective_errors import raise_on_all_ranks
from rollcall_runtime.train.rng import rng_states, set_rng_states

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rollcall_runtime.train.process_group import TrainerProcessGroup

_RNG = "generators"


def save_together(
    group: TrainerProcessGroup, path: Path, *, tensors: dict[str, Any], state: Mapping[str, Any]
) -> None:
    """Collective. Save `tensors` (nested, sharded), each rank's generators, and `state` at `path`.

    OSError on all ranks, with the number of one rank's, if any of them could not write.
    """
    with raise_on_all_ranks(group.gather):
        if group.rank == 0:
            files.begin_checkpoint(path)
    with raise_on_all_ranks(group.gather):
        own = {f"{_RNG}.{group.rank}": rng_states()}
        _save(tensors | own, files.scratch_path(path))
        # The names that torch gives to what this rank wrote.
        written = files.scratch_path(path).glob(f"__{group.rank}_*")
        names = [file.name for file in written]
        files.digest_files(path, names, rank=group.rank)
    with raise_on_all_ranks(group.gather):
        if group.rank == 0:
            files.commit_checkpoint(path, state=state)


def load_rng_states(group: TrainerProcessGroup, path: Path) -> dict[str, Any]:
    """What to load beside the tensors: this rank's generators as far as `path` has them.

    A checkpoint of fewer ranks has none for the others, one of another device has not this one's.
    """
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    key = f"{_RNG}.{group.rank}"
    wanted = {name: value for name, value in rng_states().items() if f"{key}.{name}" in saved}
    return {key: wanted} if wanted else {}


def use_rng_states(group: TrainerProcessGroup, loaded: Mapping[str, Any]) -> None:
    """Continue with the generators that came with `load_rng_states`."""
    set_rng_states(loaded.get(f"{_RNG}.{group.rank}", {}))


def _save(tensors: dict[str, Any], folder: Path) -> None:
    torch26_compat.let_errors_travel()
    try:
        save(tensors, checkpoint_id=folder)
    except CheckpointException as error:  # the same on all ranks
        first = next(iter(error.failures.values()))[0]
        if isinstance(first, OSError):
            raise OSError(first.errno, f"{first.strerror}: {folder}") from error
        # torch's own writer forgets the number: what it was given could not be written.
        raise OSError(errno.EIO, f"{type(first).__name__}: {first}") from error
