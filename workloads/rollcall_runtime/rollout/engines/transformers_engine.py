"""The inference engine `transformers`: a model in Hugging Face's format, decoded in this process.

For models that are small, or where vLLM cannot be installed. It is slower than vLLM by far.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import DynamicCache

from rollcall_runtime.models.config_values import shown_error
from rollcall_runtime.models.hugging_face import HuggingFaceSource
from rollcall_runtime.models.transformers_api import CANNOT_BUILD
from rollcall_runtime.rollout.engines.cached_model import CachedModel
from rollcall_runtime.rollout.engines.in_process_engine import InProcessEngine
from rollcall_runtime.rollout.inference_engine import FIELD
from rollcall_runtime.worker.devices import worker_device
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from rollcall_runtime.models.model_source import ModelSource

_ROUNDING = 1e-3  # of the largest logit; what padding changes otherwise is a matter of rounding


class TransformersEngine(InProcessEngine):
    """Serves a directory or an id of the Hugging Face hub, in float32, on the worker's device."""

    name = "transformers"
    other = "tiny"
    max_tokens = 64

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(model=model, config=config)
        if "past_key_values" not in inspect.signature(self._model.forward).parameters:
            problem = f"{self.name} does not serve {self._source.architecture}: it has no cache of"
            raise SpecError(f"{FIELD}.name", f"{problem} keys and values; vllm may serve it")
        self._check_decoding()

    def _check_decoding(self) -> None:
        """SpecError if this model cannot be decoded in a batch."""
        problem = "of responses that are sampled together one would depend on the others"
        try:
            if hides_padding(self._cached(self._model)):
                return
        except torch.OutOfMemoryError:
            raise
        except CANNOT_BUILD as error:
            problem = shown_error(error)
        refused = f"{self.name} does not serve {self._source.architecture}: {problem}"
        raise SpecError(f"{FIELD}.name", f"{refused}; vllm may serve it")

    @classmethod
    def _serves(cls, source: ModelSource) -> bool:
        return isinstance(source, HuggingFaceSource)

    def _cached(self, model: nn.Module) -> CachedModel:
        return CachedTransformer(self._source, model, self._device)

    def _device_type(self) -> str:
        return worker_device()


@torch.inference_mode()
def hides_padding(model: CachedModel) -> bool:
    """Whether a row's logits stay as they are behind columns of padding, with the cache too, and
    beside a row that ends.

    Some architectures with layers that keep a state let it see them.
    """
    found = []
    for padding in (0, 2):
        model.restart()
        row = [0] * padding + [0, 1, 1]
        tokens = torch.tensor([[1] * len(row), row], device=model.device)
        pad = torch.tensor([0, padding], device=model.device)
        first = model.logits(tokens, first=0, padding=pad)[1:]
        model.select(torch.tensor([1], device=model.device))
        found += [first, model.logits(tokens[1:, -1:], first=len(row), padding=pad[1:])]
    before, behind = torch.cat(found[:2]), torch.cat(found[2:])
    return bool((before - behind).abs().max() <= _ROUNDING * before.abs().max())


class CachedTransformer(CachedModel):
    """A model of transformers on `device`, with the cache of one batch."""

    def __init__(self, source: ModelSource, model: nn.Module, device: torch.device) -> None:
        self._model, self.device = cast("Any", model), device
        self.vocabulary, self.positions = source.vocabulary, source.positions
        self._cache = self._empty()

    def restart(self) -> None:
        self._cache = self._empty()

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)

    def select(self, rows: Tensor) -> None:
        # Unlike `batch_select_indices`, layers that keep a state have it, too.
        self._cache.reorder_cache(cast("Any", rows))

    def logits(self, tokens: Tensor, *, first: int, padding: Tensor) -> Tensor:
        end = first + tokens.shape[1]
        columns = torch.arange(end, device=self.device)
        positions, mask = columns[None, first:].expand_as(tokens), None
        if bool(padding.any()):
            positions = (positions - padding[:, None]).clamp(min=0)
            mask = columns >= padding[:, None]
        output = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        last: Tensor = output.logits[:, -1]
        return last
