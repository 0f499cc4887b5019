"""The built-in inference engine: the tiny decoder with a key-value cache, on one core."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.models.model_source import open_model
from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder
from rollcall_runtime.rollout.engines.decode_gate import DecodeLock
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    Generation,
    InferenceEngine,
    PauseMode,
    WeightMismatchError,
)
from rollcall_runtime.worker.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from rollcall_runtime.rollout.engines.decode_gate import Ticket
    from rollcall_runtime.rollout.inference_engine import Watch

_STEP_SECONDS = 30.0  # far above any decode step of a model this small


@dataclass(frozen=True, slots=True)
class TinySettings:
    """`engine.config` of a rollout pool: tokens a response may have, cores a step may use."""

    max_tokens: int = 6
    threads: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.threads < 1:
            raise ValueError("maxTokens and threads must be at least 1")


class TinyEngine(InferenceEngine):
    """Batches all prompts of a call; a pause or new weights take effect between two tokens.

    After a swap in mid-generation the cache is computed anew, so that each log-probability is that
    of one version's policy and not of a mixture.
    """

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        self._settings = read_settings(TinySettings, config or {}, field=f"{FIELD}.config")
        torch.set_num_threads(self._settings.threads)
        source = open_model(model)
        self._eos = source.config.eos
        self._model = source.build().requires_grad_(requires_grad=False)
        self._version: int | None = None
        self._gate = DecodeLock()

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
        partials: Sequence[Sequence[Generation]] | None = None,
        watch: Watch | None = None,
    ) -> list[list[Generation]]:
        if self._version is None:
            raise RuntimeError("no weights were loaded yet")
        rows = BatchDecoder(
            self._model,
            prompts=prompts,
            group_size=group_size,
            max_tokens=self._settings.max_tokens,
            partials=partials,
        )
        draws = torch.Generator().manual_seed(seed)
        told, wanted = time.monotonic(), True
        with self._gate.generation(timeout=timeout) as ticket:
            while wanted and rows.unfinished and self._step(rows, ticket, draws):
                now = time.monotonic()
                if watch is not None and now - told >= watch.every:
                    told, wanted = now, watch.tell(rows.results())
        return rows.results()

    def _step(self, rows: BatchDecoder, ticket: Ticket, draws: torch.Generator) -> bool:
        with self._gate.step(ticket) as permitted:
            if permitted and self._version is not None:
                rows.decode(draws, version=self._version)
        return permitted

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        state = dict(weights)
        own = self._model.state_dict()
        problems = [f"missing {name}" for name in own.keys() - state.keys()]
        problems += [f"unknown {name}" for name in state.keys() - own.keys()]
        problems += [
            f"{name} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
            for name, tensor in own.items()
            if name in state and state[name].shape != tensor.shape
        ]
        if problems:
            raise WeightMismatchError("; ".join(sorted(problems)))
        with self._gate.swap(timeout=_STEP_SECONDS), torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
            self._version = version

    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        self._gate.pause(mode, timeout=timeout)

    def resume(self) -> None:
        self._gate.resume()

    def close(self) -> None:
        self._gate.close(timeout=_STEP_SECONDS)
