"""An inference engine whose model is a module in this process."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder, ResponseRow
from rollcall_runtime.rollout.engines.decode_thread import DecodeThread
from rollcall_runtime.rollout.engines.prompt_check import response_bound
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
    TokenLimits,
    check_shapes,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from rollcall_protocol.sampling_config import SamplingConfig
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.models.tokenizer import ModelTokenizer
    from rollcall_runtime.rollout.engines.cached_model import CachedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InProcessSettings:
    """`engine.config` of a rollout pool: tokens a response may have, threads a step may use."""

    max_tokens: int
    threads: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.threads < 1:
            raise ValueError("maxTokens and threads must be at least 1")


class InProcessEngine(InferenceEngine):
    """Decodes all requests in one batch; new weights take effect between two tokens.

    When weights change the key-value cache is computed again, so that each log-probability is that
    of one version and not of a mixture. Prompts that wait, or run, together are processed together.
    """

    gives_top = True
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
        self._source, self._eos = source, end_tokens(source)
        self._device = torch.device(self._device_type())
        self._model = source.build().requires_grad_(requires_grad=False).to(self._device)
        log.info("%s serves %s on %s", self.name, model, self._device)
        self._tokenizer: ModelTokenizer | None = None
        self._thread = DecodeThread(decoder=self._decoder, step=self._step)

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
    def limits(self) -> TokenLimits:
        return TokenLimits(self._settings.max_tokens, self._source.positions)

    @property
    def version(self) -> int | None:
        return self._thread.version

    @property
    def failure(self) -> str:
        return self._thread.failure

    async def start(self) -> None:
        self._thread.start()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        row = self._row(request)
        if len(row.tokens) >= row.sampling.max_tokens:
            yield NewTokens((), (), (), finished=True)
            return
        running = self._thread.submit(row)
        running.delivered = len(row.tokens)
        try:
            while (piece := await running.pieces.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if piece.finished:
                    return
        finally:
            row.cancelled = True

    def _row(self, request: GenerationRequest) -> ResponseRow:
        """ValueError for a request that the model cannot take."""
        bound = response_bound(request, self.limits, vocabulary=self._source.vocabulary)
        sampling = _bounded(request.sampling, bound)
        if sampling.stop:
            self._open_tokenizer()
        begun = request.begun
        lists = list(begun.tokens), list(begun.logprobs), list(begun.versions)
        row = ResponseRow(request.prompt, sampling, request.seed, *lists)
        row.most_top = request.top_logprobs
        row.top = [() for _ in begun.tokens if row.most_top]
        return row

    def _decoder(self, rows: Sequence[ResponseRow]) -> BatchDecoder:
        return BatchDecoder(self._cached(self._model), rows, text=self._text, eos=self._eos)

    def _step(self, decoder: BatchDecoder, version: int) -> None:
        decoder.decode(version=version)

    def _open_tokenizer(self) -> ModelTokenizer:
        """SpecError if the model has none."""
        if self._tokenizer is None:
            self._tokenizer = open_tokenizer(self._source)
        return self._tokenizer

    def _text(self, tokens: Sequence[int]) -> str:
        """What the tokens say, special ones too."""
        return self._open_tokenizer().decode(tokens, special=True)

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        state = dict(weights)
        own = dict(self._model.named_parameters())  # a tied one once, as trainers send it
        check_shapes({name: tensor.shape for name, tensor in own.items()}, state)
        await self._thread.update(
            partial(_copy, own, state), version=version, running=running, seconds=seconds
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.close)


@lru_cache(maxsize=1024)  # those of a job are few, and each of its requests has one of them
def _bounded(sampling: SamplingConfig, max_tokens: int) -> SamplingConfig:
    return replace(sampling, max_tokens=max_tokens)


def _copy(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
