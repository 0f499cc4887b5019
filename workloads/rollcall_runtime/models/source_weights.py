"""Tensors for the parameters of a built model: from files, or made where these have none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.models.weight_loading import WeightReader
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from rollcall_protocol.wire.weight_manifest import RowRange
    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.models.weight_files import WeightFiles

# Output layers of other heads, and buffers that old checkpoints repeat in each layer.
_NOT_NEEDED = (r"^(lm_head|head|score)\.", r"rotary_emb\.inv_freq$")
_NAMED = 3  # names in a message


@dataclass(frozen=True, slots=True)
class SourceWeights(WeightReader):
    """Reads from `files` by `stored` (a parameter's name to its name there), else from `made`."""

    parameters: Mapping[str, tuple[int, ...]]
    files: WeightFiles | None
    stored: Mapping[str, str]
    made: Mapping[str, Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.parameters

    def read(self, name: str, rows: RowRange | None = None) -> Tensor:
        if self.files is not None and name in self.stored:
            return self.files.read(self.stored[name], rows)
        tensor = self.made[name]
        return tensor if rows is None else tensor[slice(*rows)]


def of_files(
    files: WeightFiles,
    parameters: Mapping[str, tuple[int, ...]],
    *,
    made: Mapping[str, Tensor],
    tied: Mapping[str, str],
    ignored: Iterable[str] = (),
) -> SourceWeights:
    """Weights for `parameters` (shapes by name) out of `files`, and out of `made` what these lack.

    `tied` has the other name of a parameter, under which the files may hold it. Tensors whose names
    match an expression of `ignored` may be there too. SpecError says which tensors are missing,
    unknown, or of another shape.
    """
    stored = {
        name: found
        for name in parameters
        for found in (name, tied.get(name, ""))[::-1]
        if found in files.tensors
    }
    _check(files, parameters, stored=stored, made=made)
    _check_tied(files, tied)
    expected = re.compile("|".join((*_NOT_NEEDED, *ignored)))
    known = {*parameters, *tied.values()}
    unknown = sorted(n for n in files.tensors if n not in known and not expected.search(n))
    if unknown:
        raise SpecError(
            FIELD,
            f"the files in '{files.directory}' hold tensors that the model of its config.json has "
            f"not: {_listed(unknown)}; copy both from one model",
        )
    return SourceWeights(parameters, files, stored, made)


def new_output_layer(
    parameters: Mapping[str, tuple[int, ...]], *, head: Head, seed: int
) -> dict[str, Tensor]:
    """Weights of the output layer `score` for a model that has none yet.

    Zeros for values, so that the first estimate is 0 everywhere; for scores a normal distribution
    of standard deviation 1 / sqrt(width + 1), and no bias, as in "The N Implementation Details of
    RLHF with PPO" (Huang et al. 2023).
    """
    made = {name: torch.zeros(shape) for name, shape in parameters.items() if _is_output(name)}
    if head == "sequence-classification":
        weight = made["score.weight"]
        generator = torch.Generator().manual_seed(seed)
        weight.normal_(std=(weight.shape[1] + 1) ** -0.5, generator=generator)
    return made


def _is_output(name: str) -> bool:
    return name in {"score.weight", "score.bias"}


def _check(
    files: WeightFiles,
    parameters: Mapping[str, tuple[int, ...]],
    *,
    stored: Mapping[str, str],
    made: Mapping[str, Tensor],
) -> None:
    missing = [name for name in parameters if name not in stored and name not in made]
    if missing:
        raise SpecError(
            FIELD,
            f"the files in '{files.directory}' lack tensors of the model of its config.json: "
            f"{_listed(missing)}; copy both from one model",
        )
    for name, where in stored.items():
        shape = files.tensors[where].shape
        if shape != parameters[name]:
            raise SpecError(
                FIELD,
                f"{files.tensors[where].file}: {where} has the shape {list(shape)}, but by the "
                f"config.json beside it {list(parameters[name])}; copy both from one model",
            )


def _check_tied(files: WeightFiles, tied: Mapping[str, str]) -> None:
    for name, other in tied.items():
        both = name in files.tensors and other in files.tensors
        if both and not torch.equal(files.read(name), files.read(other)):
            raise SpecError(
                FIELD,
                f"the directory '{files.directory}' holds {name} and {other}, which differ, but "
                "its config.json says that they are one; set tie_word_embeddings to false there",
            )


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
