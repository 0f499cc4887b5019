"""The inference engine `tiny`: the built-in decoder on one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from rollcall_runtime.models.builtin_model import BuiltinSource
from rollcall_runtime.models.tiny_decoder import KeyValueCache, TinyDecoder
from rollcall_runtime.rollout.engines.cached_model import CachedModel
from rollcall_runtime.rollout.engines.in_process_engine import InProcessEngine

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollcall_runtime.models.model_source import ModelSource


class TinyEngine(InProcessEngine):
    """Serves the built-in decoder, from its name or from a directory."""

    name = "tiny"
    other = "transformers"
    max_tokens = 6  # a response of the task `reverse`

    @classmethod
    def _serves(cls, source: ModelSource) -> bool:
        return isinstance(source, BuiltinSource)

    def _cached(self, model: nn.Module) -> CachedModel:
        return CachedTinyDecoder(cast("TinyDecoder", model))


class CachedTinyDecoder(CachedModel):
    """The built-in decoder on the CPU, with the cache of one batch."""

    device = torch.device("cpu")

    def __init__(self, model: TinyDecoder) -> None:
        self._model = model
        self.vocabulary = model.config.vocabulary
        self.positions = model.config.positions
        self._cache = KeyValueCache()

    def restart(self) -> None:
        self._cache = KeyValueCache()

    def select(self, rows: Tensor) -> None:
        self._cache.select(rows)

    def logits(self, tokens: Tensor, *, first: int, padding: Tensor) -> Tensor:
        columns = torch.arange(first, first + tokens.shape[1])
        positions, mask = columns, None
        if bool(padding.any()):
            positions = (columns - padding[:, None]).clamp(min=0)
            mask = _visible(columns, padding)
        # Positions run over in finished rows only.
        positions = positions.clamp(max=self._model.config.positions - 1)
        logits = self._model(tokens, cache=self._cache, positions=positions, mask=mask)
        last: Tensor = logits[:, -1]
        return last


def _visible(columns: Tensor, padding: Tensor) -> Tensor:
    """The keys that each of `columns` attends to, bool [rows, 1, columns, keys]."""
    keys = torch.arange(int(columns[-1]) + 1)
    seen = (keys <= columns[:, None]) & (keys >= padding[:, None, None])
    # Padding attends to itself: no row of a softmax may be empty.
    return (seen | (keys == columns[:, None]))[:, None]
