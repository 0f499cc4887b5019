"""What serving through vLLM takes, whatever its weights are: a server, arguments, requests."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rollcall_plugins.inference.vllm import card_memory
from rollcall_plugins.inference.vllm.server import card_bytes, choices, vllm_server
from rollcall_protocol.vllm_settings import VllmSettings
from rollcall_protocol.wire.generation import MAX_TOP_LOGPROBS
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.rollout.engines.prompt_check import response_bound
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.engines.server.served_model import has_tokenizer, home_variables
from rollcall_runtime.rollout.engines.server.server_engine import ServerEngine
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    GenerationRequest,
    NewTokens,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollcall_runtime.models.tokenizer import ModelTokenizer

log = logging.getLogger(__name__)

PREPARE_SECONDS = 600.0  # to load weights beside serving
_ANOTHER_SEED = 7919  # apart from the seed of a request that goes on where another ended
# vLLM's sampler has a function compiled, which needs a C++ compiler and takes half a minute.
_UNCOMPILED = {"TORCHDYNAMO_DISABLE": "1"}
# On CPUs vLLM gives even a single rank a process of its own, which imports vLLM again, in order to
# set its threads; these are set here.
_IN_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_NONE = -9999.0  # vLLM's word for no log-probability, or one of a probability of 0
_FINISHED = frozenset({"stop", "length"})


class VllmServingEngine(ServerEngine):
    """Serves a model in Hugging Face's format. How its weights change is the derived engine's."""

    NAME = "vllm"
    constrains = True
    gives_top = True

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        self._settings = read_settings(VllmSettings, config or {}, field=f"{FIELD}.config")
        super().__init__(model, self._settings)
        self._server = vllm_server(
            self._arguments(self._directory),
            socket=self._folder / "vllm.sock",
            variables=self._variables(),
            silent_seconds=self._settings.silent_seconds,
        )

    @abstractmethod
    def _weight_arguments(self) -> list[str]:
        """Arguments that say where vLLM has its weights from."""

    async def start(self) -> None:
        if torch.accelerator.is_available():
            self._server.command.append(f"--gpu-memory-utilization={self._card_share():g}")
        await self._server.start(seconds=self._settings.start_seconds)
        self._started = True
        began = time.monotonic()
        async with aclosing(choices(self._server.client, _body([0], {"max_tokens": 1}))) as pieces:
            async for _ in pieces:  # with no weights yet: what it says does not matter
                pass
        log.info("vLLM is warm after %.1f s", time.monotonic() - began)

    # --- inside --------------------------------------------------------------------------------

    def _arguments(self, directory: Path) -> list[str]:
        settings = self._settings
        arguments = [
            f"--model={directory}",
            *self._weight_arguments(),
            "--logprobs-mode=processed_logprobs",
            f"--max-logprobs={MAX_TOP_LOGPROBS + 1}",  # see `_sampling`
            "--disable-uvicorn-access-log",
            "--enable-scale-out",  # requests in tokens
            f"--dtype={settings.dtype}",
            f"--tensor-parallel-size={settings.tensor_parallel_size}",
        ]
        if not has_tokenizer(directory):
            arguments.append("--skip-tokenizer-init")
        if self.limits.context is not None:
            arguments.append(f"--max-model-len={self.limits.context}")
        if not torch.accelerator.is_available():
            arguments.append("--enforce-eager")
        return [*arguments, *settings.command_line()]

    def _update_bytes(self) -> int:
        """What an update takes of each rank's card beside the weights that serve."""
        settings = self._settings
        ranks = settings.tensor_parallel_size
        return card_memory.weight_bytes(self._shapes.values(), dtype=settings.dtype, ranks=ranks)

    def _card_share(self) -> float:
        """SpecError if the card has no room for all copies."""
        try:
            return card_memory.utilization(
                card_bytes(),
                self._update_bytes(),
                beside=1 + self.staged_copies,
                wanted=self._settings.gpu_memory_utilization,
            )
        except card_memory.NoRoomError as error:
            raise SpecError(f"{FIELD}.config", str(error)) from error

    def _variables(self) -> dict[str, str]:
        variables = {
            # Pause, resume and updates; the socket is the agent's own.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self._settings.cache_gibibytes),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self._settings.threads),
            "HF_HUB_OFFLINE": "1",
        }
        if not torch.accelerator.is_available():
            variables |= _UNCOMPILED
            if self._settings.tensor_parallel_size == 1:
                variables |= _IN_ONE_PROCESS
        return variables | home_variables(self._folder)

    @cached_property
    def _tokenizer(self) -> ModelTokenizer:
        """SpecError if there is none; requests with stop strings alone need it."""
        return open_tokenizer(self._source)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, special=True)

    def _request_body(self, request: GenerationRequest, **more: str) -> dict[str, Any] | None:
        """What vLLM is asked; None if the response is as long as it may be already.

        ValueError for a prompt that the model cannot take.
        """
        sampling, left = self._sampling(request)
        if left < 1:
            return None
        return _body([*request.prompt, *request.begun.tokens], sampling) | more

    def _sampling(self, request: GenerationRequest) -> tuple[dict[str, Any], int]:
        """The sampling parameters for vLLM, and the tokens that the response may still have.

        RuntimeError for one of a schema that is begun: vLLM would begin the JSON anew.
        """
        own, begun = request.sampling, len(request.begun.tokens)
        if request.json_schema and begun:
            raise RuntimeError("vLLM cannot continue an answer with a response_format")
        bound = response_bound(request, self.limits, vocabulary=self._source.vocabulary)
        left = bound - begun
        stops = sorted(self._eos | set(own.stop_token_ids))
        sampling: dict[str, Any] = {
            "max_tokens": left,
            "temperature": own.temperature,
            "top_p": own.top_p,
            "top_k": own.top_k,
            "stop_token_ids": stops,
            "seed": (request.seed + _ANOTHER_SEED * begun) % 2**63,
            # vLLM names the sampled token first, and leaves out the last one for it.
            "logprobs": request.top_logprobs and request.top_logprobs + 1,
            "detokenize": bool(own.stop),
        }
        if own.stop:
            sampling["stop"] = list(own.stop)
        if request.json_schema:
            sampling["structured_outputs"] = {"json": request.json_schema}
        return sampling, left


def _body(tokens: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {"token_ids": tokens, "sampling_params": dict(sampling), "stream": True}


def new_tokens(choice: Mapping[str, Any], version: int, *, top: int = 0) -> NewTokens:
    """A piece of a stream whose tokens are of `version`, with so many likeliest ones of each.

    InferenceServerError if one has no probability.
    """
    tokens = tuple(choice["token_ids"] or ())
    entries = (choice.get("logprobs") or {}).get("content") or []
    logprobs = tuple(min(float(entry["logprob"]), 0.0) for entry in entries)
    if any(logprob <= _NONE for logprob in logprobs):
        raise InferenceServerError("vLLM gave a token no log-probability: are the weights finite?")
    finished = choice.get("finish_reason") in _FINISHED
    likeliest = tuple(_likeliest(entry, top) for entry in entries) if top else ()
    versions = (version,) * len(tokens)
    return NewTokens(tokens, logprobs, versions, finished=finished, top=likeliest)


def _likeliest(entry: Mapping[str, Any], top: int) -> tuple[tuple[int, float], ...]:
    """Of the tokens that an entry names; a probability of 0 is of one that cannot be sampled."""
    named = entry.get("top_logprobs") or []
    pairs = [(int(one["token_id"]), min(float(one["logprob"]), 0.0)) for one in named]
    possible = [pair for pair in pairs if pair[1] > _NONE]
    return tuple(sorted(possible, key=lambda pair: -pair[1])[:top])
