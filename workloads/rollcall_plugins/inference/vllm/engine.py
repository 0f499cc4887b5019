"""Requests and updates of weights, through a vLLM server that this engine starts."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rollcall_plugins.inference.vllm import card_memory
from rollcall_plugins.inference.vllm.adapter_engine import VllmAdapterEngine
from rollcall_plugins.inference.vllm.in_server import BACKEND, staged_file
from rollcall_plugins.inference.vllm.server import choices
from rollcall_plugins.inference.vllm.serving_engine import (
    PREPARE_SECONDS,
    VllmServingEngine,
    new_tokens,
)
from rollcall_runtime.rollout.engines.server.begun_stops import BegunStops
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.engines.server.server_engine import CALL_SECONDS
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
)
from rollcall_runtime.sync.memory.exported_buffers import place_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollcall_protocol.adapter_config import AdapterConfig

_LOOK_SECONDS = 0.01  # between two looks at whether all ranks have prepared
_MODES = {PauseMode.ABORT: "abort", PauseMode.KEEP: "keep", PauseMode.WAIT: "wait"}


class VllmEngine(VllmServingEngine):
    """Serves a model in Hugging Face's format. The weights come with the first update alone.

    Keys and values of the prefix cache are found by those requests alone that begin after the same
    update (`cache_salt`), so that the cache need not be emptied for one.
    """

    reads_shared_memory = True

    def __init__(self, *, model: str, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(model=model, config=config)
        self._clear_cache = "true" if self._settings.recompute_cache else "false"
        self._updates = 0  # that were made: version numbers may repeat
        self._updating = False  # whether vLLM's workers have begun an update, and not finished it
        self._staged = -1  # the descriptor of the file that the weights are staged in

    @property
    def device(self) -> str:
        """Of several cards none has all of the weights: they are received in the host's memory."""
        alone = self._settings.tensor_parallel_size == 1
        return "cuda" if alone and torch.cuda.is_available() else "cpu"

    @classmethod
    def for_adapter(
        cls, adapter: AdapterConfig, *, model: str, config: Mapping[str, Any]
    ) -> InferenceEngine:
        return VllmAdapterEngine(adapter, model=model, config=config)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        if self.failure:
            raise RuntimeError(self.failure)
        if self._version is None:
            raise RuntimeError("no weights have been loaded yet")
        body = self._request_body(request, cache_salt=str(self._updates))
        if body is None:
            yield NewTokens((), (), (), finished=True)
            return
        versions: list[int] = []
        stops = BegunStops(request, text=self._text)
        async with aclosing(choices(self._server.client, body)) as stream:
            async for choice in stream:
                new = new_tokens(choice, self._version, top=request.top_logprobs)
                piece = stops.cut(_with_certain_versions(new, choice, versions))
                if piece.tokens or piece.finished:
                    yield piece
                if piece.finished or choice.get("finish_reason") == "abort":
                    return
        raise InferenceServerError("the stream of a request ended before its response")

    async def _prepare(self, state: Mapping[str, Tensor], *, version: int) -> None:
        staged = os.memfd_create(f"rollcall-{version}")
        former, self._staged = self._staged, staged
        if former >= 0:
            os.close(former)
        await asyncio.to_thread(
            staged_file.write, staged, state.items(), version=version, place_of=place_of
        )
        reports = self._folder / "prepared"
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir()
        path = f"/proc/{os.getpid()}/fd/{staged}"
        if not self._updating:
            await self._call("/start_weight_update")
            self._updating = True
        await self._call("/update_weights", action="prepare", path=path, reports=str(reports))
        await self._all_prepared(reports)
        await self._call("/update_weights", action="wait", seconds=CALL_SECONDS)

    async def _serve_prepared(self, version: int, *, running: PauseMode, seconds: float) -> None:
        try:
            await self._server.client.post(
                "/pause",
                parameters={"mode": _MODES[running], "clear_cache": self._clear_cache},
                seconds=seconds,
            )
        except TimeoutError:
            await self._resume()
            problem = f"vLLM did not pause within {seconds:g} s"
            raise TimeoutError(problem) from None
        except InferenceServerError:
            await self._resume()
            raise
        try:
            await self._post("/finish_weight_update", {"weight_version": str(version)})
        except (InferenceServerError, TimeoutError) as error:
            # Some ranks may serve the new weights: nothing is generated until it is replaced.
            self._server.fail(f"vLLM could not finish the update to version {version}: {error}")
            raise RuntimeError(self.failure) from error
        self._prepared, self._updating = None, False
        self._updates += 1
        self._version = version  # no token is sampled during the pause
        await self._resume()

    async def close(self) -> None:
        await super().close()
        if self._staged >= 0:
            os.close(self._staged)
            self._staged = -1

    # --- inside --------------------------------------------------------------------------------

    def _weight_arguments(self) -> list[str]:
        return [f'--weight-transfer-config={{"backend": "{BACKEND}"}}', "--load-format=dummy"]

    async def _all_prepared(self, reports: Path) -> None:
        """Until each rank has reported; RuntimeError with what one of them says failed."""
        deadline = time.monotonic() + PREPARE_SECONDS
        ranks = [reports / str(rank) for rank in range(self._settings.tensor_parallel_size)]
        while not all(report.exists() for report in ranks):
            if self.failure:
                raise RuntimeError(self.failure)
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM did not prepare weights in {PREPARE_SECONDS:g} s")
            await asyncio.sleep(_LOOK_SECONDS)
        problems = {report.name: report.read_text() for report in ranks}
        said = [f"rank {rank}: {problem}" for rank, problem in problems.items() if problem]
        if any("OutOfMemory" in problem for problem in said):
            said.append(card_memory.too_full(self._update_bytes()))
        if said:
            raise RuntimeError("; ".join(said))

    async def _call(self, route: str, **update_info: Any) -> None:
        """Have all of vLLM's workers do something.

        If one fails, vLLM takes what the others answered for the answer to its next call, so an
        error takes it out of service.
        """
        try:
            await self._post(route, {"update_info": update_info} if update_info else None)
        except (InferenceServerError, TimeoutError) as error:
            self._server.fail(f"vLLM's workers failed at a call: {str(error) or 'no answer'}")
            raise RuntimeError(self.failure) from error

    async def _post(self, route: str, body: dict[str, Any] | None = None) -> None:
        await self._server.client.post(route, body, seconds=CALL_SECONDS + 10.0)

    async def _resume(self) -> None:
        try:
            await self._post("/resume")
        except (InferenceServerError, TimeoutError) as error:
            self._server.fail(f"vLLM could not resume after a pause: {error}")
            raise RuntimeError(self.failure) from error


def _with_certain_versions(
    piece: NewTokens, choice: Mapping[str, Any], versions: list[int]
) -> NewTokens:
    """`piece` of `choice`. `versions` are those of all tokens so far, and get these.

    vLLM says at the end which version sampled which tokens; until then a token is of the version
    that serves when it comes.
    """
    versions += piece.versions
    spans = choice.get("weight_versions") or []
    certain = [int(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    corrected = tuple(certain) if certain and certain != versions else ()
    if len(corrected) not in {0, len(versions)}:
        raise InferenceServerError(
            f"vLLM says the versions of {len(corrected)} of {len(versions)} tokens"
        )
    return replace(piece, all_versions=corrected)
