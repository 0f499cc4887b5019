"""Requests and updates of weights, through an SGLang server that this engine starts."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from contextlib import aclosing, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from rollcall_plugins.inference.sglang import staged_weights
from rollcall_plugins.inference.sglang.running_requests import RunningRequests
from rollcall_plugins.inference.sglang.server import sglang_server
from rollcall_plugins.inference.sglang.token_stream import TokenStream
from rollcall_protocol.sglang_settings import SglangSettings, sampling_problem
from rollcall_runtime.rollout.engines.prompt_check import response_bound
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.engines.server.served_model import has_tokenizer, home_variables
from rollcall_runtime.rollout.engines.server.server_engine import CALL_SECONDS, ServerEngine
from rollcall_runtime.rollout.inference_engine import (
    FIELD,
    GenerationRequest,
    NewTokens,
    PauseMode,
)
from rollcall_runtime.worker.engine_config import read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollcall_plugins.inference.sglang.staged_weights import StagedVersion

log = logging.getLogger(__name__)

ABORT_SECONDS = 5.0
# Retracting hands over what is being sampled, before it pauses; a pause `in_place` holds it back
# until it is over, and SGLang then takes it for tokens of the new weights.
_RETRACT = {"mode": "retract"}
_PAUSES = {
    PauseMode.ABORT: ({"mode": "abort"}, _RETRACT),
    PauseMode.KEEP: (_RETRACT,),
    PauseMode.WAIT: (_RETRACT,),
}


class SglangEngine(ServerEngine):
    """Serves a model in Hugging Face's format. The weights come with the first update alone.

    SGLang loads weights in place, and does not return to the former ones if it fails: from then on
    nothing is generated, and `failure` says so.
    """

    NAME = "sglang"

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        self._settings = read_settings(SglangSettings, config or {}, field=f"{FIELD}.config")
        super().__init__(model, self._settings)
        self._server = sglang_server(
            self._arguments(self._directory),
            folder=self._folder,
            variables=self._variables(),
            silent_seconds=self._settings.silent_seconds,
        )
        self._staged: StagedVersion | None = None
        self._checksums: tuple[str, ...] = ()  # of the weights of each rank
        self._requests = RunningRequests()

    async def start(self) -> None:
        await self._server.start(seconds=self._settings.start_seconds)
        self._started = True
        began = time.monotonic()
        body = _body("warm-up", [0], {"max_new_tokens": 1})
        async with aclosing(self._server.client.stream("/generate", body)) as events:
            async for _ in events:  # with no weights yet: what it says does not matter
                pass
        self._checksums = await self._checksums_of_ranks()
        log.info("SGLang is warm after %.1f s", time.monotonic() - began)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        sampling, left = self._sampling(request)
        if left < 1:
            yield NewTokens((), (), (), finished=True)
            return
        prompt = [*request.prompt, *request.begun.tokens]
        name = uuid.uuid4().hex  # none begins with another: SGLang aborts all that do
        stream = TokenStream(vocabulary=self._source.vocabulary, most=left)
        async with self._requests.one():
            self._check_in_service()
            body = _body(name, prompt, sampling)
            async with aclosing(self._server.client.stream("/generate", body)) as events:
                try:
                    async for event in events:
                        piece = stream.read(event, version=self._version or 0)
                        if piece.tokens or piece.finished:
                            yield piece
                        if stream.ended:
                            return
                except (GeneratorExit, asyncio.CancelledError):
                    await self._abort(name)
                    raise
        raise InferenceServerError("the stream of a request ended before its response")

    async def _prepare(self, state: Mapping[str, Tensor], *, version: int) -> None:
        self._drop_staged()
        stage = staged_weights.stage
        self._staged = await asyncio.to_thread(stage, self._folder, state.items(), version=version)

    async def _serve_prepared(self, version: int, *, running: PauseMode, seconds: float) -> None:
        assert self._staged is not None  # noqa: S101 - `_prepare` made it
        waiting = self._requests.none(seconds=seconds)
        async with waiting if running is PauseMode.WAIT else nullcontext():
            await self._pause(running, seconds)
            with self._out_of_service_unless_done(f"load version {version}"):
                await self._load(self._staged)
            self._version = version  # no token is sampled during the pause
            await self._resume()
        self._drop_staged()

    async def close(self) -> None:
        await super().close()
        self._drop_staged()

    # --- inside --------------------------------------------------------------------------------

    def _arguments(self, directory: Path) -> list[str]:
        settings = self._settings
        arguments = [
            f"--model-path={directory}",
            "--load-format=dummy",
            f"--dtype={settings.dtype}",
            f"--tp-size={settings.tensor_parallel_size}",
            "--incremental-streaming-output",
            "--enable-metrics",
            "--skip-server-warmup",
            "--log-level-http=warning",  # a line for each look at it, otherwise
        ]
        if not has_tokenizer(directory):
            arguments.append("--skip-tokenizer-init")
        if self.limits.context is not None:
            arguments.append(f"--context-length={self.limits.context}")
        if settings.mem_fraction_static:
            arguments.append(f"--mem-fraction-static={settings.mem_fraction_static}")
        return [*arguments, *settings.command_line()]

    def _variables(self) -> dict[str, str]:
        return {
            "HF_HUB_OFFLINE": "1",
            "SGLANG_RETURN_ORIGINAL_LOGPROB": "false",  # those after the temperature
            **home_variables(self._folder),
        }

    def _sampling(self, request: GenerationRequest) -> tuple[dict[str, Any], int]:
        """The sampling parameters for SGLang, and the tokens that the response may still have."""
        own = request.sampling
        if problem := sampling_problem(top_p=own.top_p, top_k=own.top_k):
            raise ValueError(problem)
        bound = response_bound(request, self.limits, vocabulary=self._source.vocabulary)
        left = bound - len(request.begun.tokens)
        sampling: dict[str, Any] = {
            "max_new_tokens": left,
            "temperature": own.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": sorted(self._eos | set(own.stop_token_ids)),
            "sampling_seed": request.seed % 2**63,
        }
        if own.stop:
            sampling["stop"] = list(own.stop)
        return sampling, left

    def _check_in_service(self) -> None:
        if self.failure:
            raise RuntimeError(self.failure)
        if self._version is None:
            raise RuntimeError("no weights have been loaded yet")

    async def _pause(self, running: PauseMode, seconds: float) -> None:
        """SGLang acts on calls in their order: what follows finds it paused."""
        try:
            async with asyncio.timeout(seconds):
                for body in _PAUSES[running]:
                    await self._server.client.post("/pause_generation", body, seconds=seconds)
        except TimeoutError:
            await self._resume()
            raise TimeoutError(f"SGLang did not pause within {seconds:g} s") from None
        except BaseException:
            await self._resume()
            raise

    async def _load(self, staged: StagedVersion) -> None:
        """InferenceServerError unless all ranks serve what is staged."""
        wanted = {"model_path": str(staged.directory), "weight_version": str(staged.version)}
        body = {**wanted, "load_format": "safetensors", "flush_cache": True}
        answer = await self._post("/update_weights_from_disk", body)
        if answer.get("success") is not True:
            raise InferenceServerError(f"{answer.get('message')}"[:2000])
        info = _object(await self._server.client.get("/model_info", seconds=CALL_SECONDS))
        if served := {key: info.get(key) for key in wanted if info.get(key) != wanted[key]}:
            raise InferenceServerError(f"it says that it serves {served}, not {wanted}")
        found = await self._checksums_of_ranks()
        changed = [a != b for a, b in zip(self._checksums, found, strict=True)]
        if any(changed) and not all(changed):
            ranks = [rank for rank, other in enumerate(changed) if not other]
            raise InferenceServerError(f"the ranks {ranks} still have the former weights")
        self._checksums = found

    async def _checksums_of_ranks(self) -> tuple[str, ...]:
        """Of several ranks: SGLang answers for the first alone whether an update was made."""
        if self._settings.tensor_parallel_size == 1:
            return ()
        answer = await self._post("/weights_checker", {"action": "checksum"})
        found = tuple(str(rank["per_gpu_checksum"]) for rank in answer.get("ranks") or ())
        if len(found) != self._settings.tensor_parallel_size:
            raise InferenceServerError(f"{len(found)} ranks say what weights they have")
        return found

    async def _post(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A call during which SGLang does not answer others."""
        seconds = self._settings.silent_seconds
        return _object(await self._server.client.post(route, body, seconds=seconds))

    async def _resume(self) -> None:
        with self._out_of_service_unless_done("resume after a pause"):
            body = {"torch_empty_cache": False}
            await self._server.client.post("/continue_generation", body, seconds=CALL_SECONDS)

    @contextmanager
    def _out_of_service_unless_done(self, what: str) -> Iterator[None]:
        """Whatever ends the block early, SGLang is not asked for anything any more."""
        try:
            yield
        except BaseException as error:
            self._server.fail(f"SGLang could not {what}: {str(error) or 'no answer'}")
            if not isinstance(error, Exception):
                raise
            raise RuntimeError(self.failure) from error

    async def _abort(self, name: str) -> None:
        # SGLang also aborts what has lost its connection, which is closed after this.
        with suppress(InferenceServerError, OSError, TimeoutError):
            body = {"rid": name}
            await self._server.client.post("/abort_request", body, seconds=ABORT_SECONDS)

    def _drop_staged(self) -> None:
        staged, self._staged, self._prepared = self._staged, None, None
        if staged is not None:
            staged.close()


def _body(name: str, tokens: list[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rid": name,
        "input_ids": tokens,
        "sampling_params": {**sampling, "no_stop_trim": True},
        "return_logprob": True,
        "stream": True,
    }


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise InferenceServerError(f"an answer is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InferenceServerError("an answer is no object")
    return found
