"""Saves with torch.distributed.checkpoint so that all ranks agree on the outcome."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checked_pickles import MetadataReader, PlainValuesPlanner
from rollcall_runtime.train.checkpoint.planned_save import save_planned
from rollcall_runtime.train.checkpoint.soundness import MODEL
from rollcall_runtime.train.collective_errors import raise_on_all_ranks
from rollcall_runtime.train.finite_weights import FiniteWeights, NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rollcall_runtime.train.process_group import TrainerProcessGroup

_RNG = "rng"
CPU = "cpu"


def prepare_save(
    group: TrainerProcessGroup, path: Path, *, tensors: dict[str, Any], state: Mapping[str, Any]
) -> Callable[[], None]:
    """Copy `tensors` (nested, sharded) and this rank's RNG states; returns what writes them.

    The function is collective in the group of checkpoint threads. It writes the copies and `state`
    to `path`. On all ranks it raises OSError, with the errno of one of them, if any cannot write,
    and NotFiniteError if a tensor of the model is not finite.
    """
    copies = _copy(tensors) | {f"{_RNG}.{group.rank}": rng_states()}
    gather = group.gather_for_checkpoint
    weights = FiniteWeights()
    for name, tensor in copies[MODEL].items():
        weights.add(name, tensor)

    def write() -> None:
        for bad in filter(None, gather(weights.first_bad())):
            raise NotFiniteError(f"weights are not finite: {bad}")
        with raise_on_all_ranks(gather):
            if group.rank == 0:
                files.begin_checkpoint(path)
        with raise_on_all_ranks(gather):
            save_planned(copies, files.scratch_path(path), group)
            # torch gives the files of this rank these names.
            written = files.scratch_path(path).glob(f"__{group.rank}_*")
            files.digest_files(path, [file.name for file in written], rank=group.rank)
        with raise_on_all_ranks(gather):
            if group.rank == 0:
                files.commit_checkpoint(path, state=state)

    return write


def _copy(value: Any) -> Any:
    """A deep copy of nested dictionaries, lists and tensors (sharded ones too)."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(item) for item in value)
    return value


def check_same_tensors(path: Path, tensors: Mapping[str, Any], *, prefix: str) -> frozenset[str]:
    """The names of everything in the checkpoint.

    ValueError, on all ranks as they read the same file, unless it has exactly `tensors` (by name,
    in their whole shapes) under `prefix`.
    """
    try:
        saved = MetadataReader(path).read_metadata().state_dict_metadata
    except FileNotFoundError as error:
        raise ValueError(f"checkpoint {path} is of a training engine with another form") from error
    begin = f"{prefix}."
    wanted = {begin + name: tuple(tensor.shape) for name, tensor in tensors.items()}
    found = {
        name: tuple(getattr(value, "size", ()))
        for name, value in saved.items()
        if name.startswith(begin)
    }
    wrong = sorted({name for name, _ in wanted.items() ^ found.items()})
    if wrong:
        raise ValueError(
            f"checkpoint {path} is of another model: {len(wrong)} tensors differ by name or "
            f"shape, such as {wrong[0].removeprefix(begin)}"
        )
    return frozenset(saved)


def load_tensors(group: TrainerProcessGroup, tensors: dict[str, Any], path: Path) -> None:
    """Collective. Read `tensors` (nested, sharded) from a checkpoint into their places.

    Each rank reads the metadata and its own parts, so that no plans travel. On all ranks OSError if
    one cannot read, ValueError if the checkpoint lacks some of them.
    """
    own: Exception | None = None
    with raise_on_all_ranks(group.gather):
        try:
            _read(tensors, path)
        except OSError as error:
            problem = f"{error.strerror or error}: {path}"
            raise OSError(error.errno or errno.EIO, problem) from error
        except Exception as error:  # noqa: BLE001 - torch raises whatever a wrong file leads it to
            own = error
    problems = group.gather("" if own is None else f"{type(own).__name__}: {own}")
    first = next((problem for problem in problems if problem), "")
    if first:
        raise ValueError(f"checkpoint {path} holds other tensors: {first}") from own


def _read(tensors: dict[str, Any], path: Path) -> None:
    reader, planner = MetadataReader(path), PlainValuesPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(tensors, metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()


def load_rng_states(group: TrainerProcessGroup, path: Path) -> dict[str, Any]:
    """What to load beside the tensors: the RNG states that `path` has for this rank.

    A checkpoint of fewer ranks has none for the others, one of another device none for this one.
    """
    saved = MetadataReader(path).read_metadata().state_dict_metadata
    key = f"{_RNG}.{group.rank}"
    wanted = {name: value for name, value in rng_states().items() if f"{key}.{name}" in saved}
    return {key: wanted} if wanted else {}


def use_rng_states(group: TrainerProcessGroup, loaded: Mapping[str, Any]) -> None:
    """Continue with the states that were loaded for `load_rng_states`."""
    set_rng_states(loaded.get(f"{_RNG}.{group.rank}", {}))


def rng_states() -> dict[str, Tensor]:
    """By device type: the CPU's, and that of the accelerator in use, if there is one."""
    states = {CPU: torch.get_rng_state()}
    device = _accelerator()
    if device is not None:
        states[device] = torch.get_device_module(device).get_rng_state()
    return states


def set_rng_states(states: Mapping[str, Tensor]) -> None:
    """Continue from `states`, which are of devices that are in use here."""
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state)


def _accelerator() -> str | None:
    """The device type, if this process has begun to use it: asking must not start a driver."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    if found is None or not torch.get_device_module(found.type).is_initialized():
        return None
    return found.type
