"""An inference engine to start from, whose model is in this process: fill the places marked FILL.

The base class batches requests, samples, streams tokens, and changes weights between two tokens. An
engine that is a server of its own derives from `rollout.inference_engine.InferenceEngine` instead.
"""

import torch
from torch import Tensor, nn

from rollcall_runtime.models.model_source import ModelSource
from rollcall_runtime.rollout.engines.cached_model import CachedModel
from rollcall_runtime.rollout.engines.in_process_engine import InProcessEngine
from rollcall_runtime.worker.devices import worker_device


class MyInference(InProcessEngine):
    """Serves what the model's source builds, on the worker's device."""

    name = "example.my-inference"
    other = "transformers"  # named where `_serves` is False
    max_tokens = 64  # of a response, unless `engine.config.maxTokens` says otherwise

    @classmethod
    def _serves(cls, source: ModelSource) -> bool:
        del source  # every kind that `models.open_model` opens
        return True

    def _device_type(self) -> str:
        return worker_device()

    def _cached(self, model: nn.Module) -> CachedModel:
        return MyModel(self._source, model, self._device)


class MyModel(CachedModel):
    """The model with what it keeps of the tokens that it was given."""

    def __init__(self, source: ModelSource, model: nn.Module, device: torch.device) -> None:
        self._model, self.device = model, device
        self.vocabulary, self.positions = source.vocabulary, source.positions
        self.restart()

    def restart(self) -> None:
        """Called for a new batch, and when the weights have changed."""
        raise NotImplementedError("FILL 1: forget all tokens")

    def select(self, rows: Tensor) -> None:
        """`rows` are numbers of rows, each as often as it goes on."""
        raise NotImplementedError("FILL 2: keep these rows")

    def logits(self, tokens: Tensor, *, first: int, padding: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of what follows `tokens` [rows, columns].

        The columns begin at `first`, behind those of earlier calls. The first `padding` [rows]
        columns of a row mean nothing.
        """
        raise NotImplementedError("FILL 3: compute the next token's logits")
