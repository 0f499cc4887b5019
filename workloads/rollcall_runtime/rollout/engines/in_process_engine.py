"""An inference engine whose model is a module in this process, decoded batch by batch."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder
from rollcall_runtime.rollout.engines.decode_lock import DecodeLock
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    InferenceEngine,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from rollcall_protocol.wire.partial_responses import Response
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.rollout.engines.cached_model import CachedModel
    from rollcall_runtime.rollout.engines.decode_lock import Ticket
    from rollcall_runtime.rollout.inference_engine import PartialOutputCallback

log = logging.getLogger(__name__)

_STEP_SECONDS = 30.0  # far above any decode step of a model that is small enough for this engine


@dataclass(frozen=True, slots=True)
class InProcessSettings:
    """`engine.config` of a rollout pool: tokens a response may have, threads a step may use."""

    max_tokens: int
    threads: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.threads < 1:
            raise ValueError("maxTokens and threads must be at least 1")


class InProcessEngine(InferenceEngine):
    """Batches all prompts of a call; a pause or new weights take effect between two tokens.

    When weights change during a generation the key-value cache is computed again, so that each
    log-probability is that of one version and not of a mixture. The sampling temperature is 1.
    """

    name: str  # in the registry
    other: str  # the engine that serves the models which this one does not
    max_tokens: int  # unless `engine.config` says otherwise

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        given = {"maxTokens": self.max_tokens, **(config or {})}
        self._settings = read_settings(InProcessSettings, given, field=f"{FIELD}.config")
        torch.set_num_threads(self._settings.threads)
        source = open_model(model)
        if not self._serves(source):
            problem = f"{self.name} does not serve the model {model!r}; {self.other} does"
            raise SpecError(f"{FIELD}.name", problem)
        self._source, self._device = source, torch.device(self._device_type())
        self._model = source.build().requires_grad_(requires_grad=False).to(self._device)
        log.info("%s serves %s on %s", self.name, model, self._device)
        self._version: int | None = None
        self._lock = DecodeLock()

    @classmethod
    @abstractmethod
    def _serves(cls, source: ModelSource) -> bool:
        """Whether this engine can generate with that kind of model."""

    @abstractmethod
    def _cached(self, model: nn.Module) -> CachedModel:
        """The engine's `model` with a cache of its own."""

    def _device_type(self) -> str:
        """Where the model is."""
        return "cpu"

    @property
    def device(self) -> str:
        return self._device.type

    @property
    def version(self) -> int | None:
        return self._version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        seed: int,
        timeout: float,
        partials: Sequence[Sequence[Response]] | None = None,
        on_partial: PartialOutputCallback | None = None,
    ) -> list[list[Response]]:
        if self._version is None:
            raise RuntimeError("no weights have been loaded yet")
        model = self._cached(self._model)
        decoder = BatchDecoder(
            model,
            prompts=prompts,
            group_size=group_size,
            max_tokens=self._settings.max_tokens,
            partials=partials,
        )
        generator = torch.Generator(model.device).manual_seed(seed)
        reported, wanted = time.monotonic(), True
        with self._lock.generation(timeout=timeout) as ticket:
            while wanted and decoder.unfinished and self._step(decoder, ticket, generator):
                now = time.monotonic()
                if on_partial is not None and now - reported >= on_partial.interval:
                    reported, wanted = now, on_partial.callback(decoder.results())
        return decoder.results()

    def _step(self, decoder: BatchDecoder, ticket: Ticket, generator: torch.Generator) -> bool:
        with self._lock.step(ticket) as permitted:
            if permitted and self._version is not None:
                decoder.decode(generator, version=self._version)
        return permitted

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        state = dict(weights)
        own = dict(self._model.named_parameters())  # a tied one once, as trainers send it
        problems = [f"missing {name}" for name in own.keys() - state.keys()]
        problems += [f"unknown {name}" for name in state.keys() - own.keys()]
        problems += [
            f"{name} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
            for name, tensor in own.items()
            if name in state and state[name].shape != tensor.shape
        ]
        if problems:
            raise WeightMismatchError("; ".join(sorted(problems)))
        with self._lock.update(timeout=_STEP_SECONDS), torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
            self._version = version

    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        self._lock.pause(mode, timeout=timeout)

    def resume(self) -> None:
        self._lock.resume()

    def close(self) -> None:
        self._lock.close(timeout=_STEP_SECONDS)
