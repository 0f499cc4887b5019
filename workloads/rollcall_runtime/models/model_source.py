"""What every model offers before it is built, whatever its format: sizes, tensors, a way to build.

`open_model.open_model` finds the source that a path names. Opening reads the configuration and the
headers of the files; weights are read when they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from rollcall_runtime.models.weight_loading import fill, materialise

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from rollcall_runtime.models.weight_loading import WeightReader

FIELD = "spec.model.path"

Head = Literal["language-model", "value", "sequence-classification"]
"""What a model predicts: the next token, one number at each position, or one for each sequence."""


# One of them is what transformers reads a tokenizer from.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class ModelSource(ABC):
    """A model that exists, and everything that is known of it without building it.

    `path` as the job names it. `architecture`: "tiny" for the built-in decoder, else the
    `model_type` of transformers. `vocabulary`: tokens are below it. `positions`: tokens that a
    sequence may have, None if nothing bounds them. `named_eos`: tokens that end a response by the
    model's own settings; `end_tokens` has all. `directory`: where its files are, None if it has
    none.
    """

    path: str
    architecture: str
    vocabulary: int
    positions: int | None
    named_eos: frozenset[int]
    directory: Path | None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer beside the model."""
        directory = self.directory
        return directory is not None and any((directory / name).is_file() for name in _TOKENIZERS)

    @abstractmethod
    def build_empty(
        self, *, head: Head = "language-model", dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        """The model with parameters on the meta device, and buffers with values on the CPU.

        `materialise` and `fill` give the parameters their values, also after they were sharded; the
        names of `weights` are those of the parameters. In `model_parts` are functions to compute
        with it. SpecError if its configuration cannot be.
        """

    @abstractmethod
    def weights(self, *, head: Head = "language-model", seed: int = 0) -> WeightReader:
        """Its tensors by the names of the parameters, each once; a tied one is not repeated.

        `seed` gives those that the source has none for: all of a builtin, and a head that is new.
        SpecError if the tensors of its files do not fit it.
        """

    @abstractmethod
    def config_json(self, *, head: Head, dtype: torch.dtype) -> dict[str, Any]:
        """The config.json of this model with that head and weights of that dtype."""

    def build(
        self,
        *,
        head: Head = "language-model",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> nn.Module:
        """The model with its weights, on the CPU, in evaluation mode. Each call makes another one.

        SpecError as in `build_empty` and `weights`.
        """
        model = self.build_empty(head=head, dtype=dtype)
        weights = self.weights(head=head, seed=seed)  # before memory is taken for its sizes
        materialise(model, "cpu")
        fill(model, weights)
        return model
