"""Writes a trained model as a directory that others load."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from rollcall_protocol.adapter_config import exported_adapter
from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.models.export import export_adapter, export_model
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.soundness import checkpoint_problem
from rollcall_runtime.train.collective_errors import raise_on_all_ranks
from rollcall_runtime.train.engine_configuration import split_config
from rollcall_runtime.train.finite_weights import FiniteWeights
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import EngineSetup, train_engines
from rollcall_runtime.worker.devices import worker_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

    from rollcall_protocol.job_config import EngineRef
    from rollcall_runtime.train.train_engine import TrainEngine

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export_checkpoint(
    checkpoint: Path, directory: Path, *, model: str, engine: EngineRef, precision: str
) -> Path:
    """Load a checkpoint of any number of ranks with one, and export it; returns its folder.

    `checkpoint`: its folder, or one of several, of which the newest whole one is taken. `model` and
    `engine` are those that it was trained with. SpecError or ValueError if it is of others, OSError
    if it cannot be read or `directory` not be written.
    """
    find_checkpoint(checkpoint)  # if there is none, this is known before all else
    common, own = split_config(engine.config)
    make_engine = train_engines.get(engine.name)
    with ExitStack() as owned:
        ranks = TrainerProcessGroup(device=worker_device())
        owned.callback(ranks.close)
        # A checkpoint has the optimizer's state, too; its learning rate plays no part here.
        setup = EngineSetup(
            model=model,
            ranks=ranks,
            optimizer=OptimizerConfig("adamw", 1.0),
            settings=common,
            own_settings=own,
        )
        loader = make_engine(setup)
        owned.callback(loader.close)
        loader.initialize()
        path = find_checkpoint(checkpoint)  # a job that goes on may have deleted the first one
        loader.load_checkpoint(path)
        export_weights(loader, directory, precision=precision)
    return path


def find_checkpoint(path: Path) -> Path:
    """`path` if it is a checkpoint, else the newest whole one in it.

    FileNotFoundError says what is wrong with those that are there.
    """
    problem = f"'{path}' is not a checkpoint, and holds none"
    for candidate in files.list_checkpoints(path) or [path]:
        found = checkpoint_problem(candidate)
        if not found:
            return candidate
        problem = f"{candidate}: {found}"
    raise FileNotFoundError(problem)


def export_weights(engine: TrainEngine, directory: Path, *, precision: str = "fp32") -> None:
    """Collective. Rank 0 writes the engine's model, or the adapter alone that it exports.

    OSError, on all ranks, if it cannot be written, is there already, or a weight is not finite.
    """
    setup = engine.setup
    with raise_on_all_ranks(setup.ranks.gather):
        weights = engine.named_weights()
        try:
            if setup.ranks.rank == 0:
                _export(setup, _finite(weights), directory, dtype=PRECISIONS[precision])
        finally:
            for _ in weights:  # all ranks gather each tensor, whichever needs it
                pass


def _export(
    setup: EngineSetup,
    weights: Iterable[tuple[str, Tensor]],
    directory: Path,
    *,
    dtype: torch.dtype,
) -> None:
    source, adapter = open_model(setup.model), exported_adapter(setup.settings)
    if adapter is None:
        export_model(source, weights, directory, head=setup.head, dtype=dtype)
    else:
        export_adapter(source, adapter, weights, directory, dtype=dtype)


def _finite(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same, and an OSError after the last one if any is not finite."""
    seen = FiniteWeights()
    yield from seen.watch(weights)
    if bad := seen.first_bad():
        advice = "export an earlier checkpoint, or train with a lower learning rate"
        raise OSError(errno.EINVAL, f"the weights are not finite: {bad}; {advice}")
