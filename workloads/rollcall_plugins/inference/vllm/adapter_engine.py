"""Requests and updates where each version is an adapter of the model, whose weights vLLM reads."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rollcall_plugins.inference.vllm.server import choices
from rollcall_plugins.inference.vllm.serving_engine import (
    PREPARE_SECONDS,
    VllmServingEngine,
    new_tokens,
)
from rollcall_runtime.models.adapter_files import adapter_shapes, write_adapter
from rollcall_runtime.rollout.engines.server.begun_stops import BegunStops
from rollcall_runtime.rollout.engines.server.client import InferenceServerError
from rollcall_runtime.rollout.engines.server.server_engine import CALL_SECONDS
from rollcall_runtime.rollout.inference_engine import NewTokens, PauseMode
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollcall_protocol.adapter_config import AdapterConfig
    from rollcall_runtime.rollout.inference_engine import GenerationRequest

log = logging.getLogger(__name__)

TARGETS = "spec.trainer.engine.config.loraTargets"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The bounds of a rank that vLLM knows."""
_SLOTS = 2  # of adapters that can run: the one that serves, and the next one
# In host memory: vLLM may still run a step of a request that was ended a moment ago, and must not
# have to read the files of its adapter again.
_KEPT = 4


class NamedAdapter:
    """A version in vLLM, under a name that never means another one.

    `retired` is done when another version has taken its place: what that did to its requests.
    """

    def __init__(self, name: str, *, version: int, folder: Path) -> None:
        self.name, self.version, self.folder = name, version, folder
        self.retired: asyncio.Future[PauseMode] = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        self.idle.set()
        self._requests = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within this context a request names it."""
        self._requests += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self.idle.set()


class VllmAdapterEngine(VllmServingEngine):
    """Serves a model with an adapter, which is all that an update brings.

    vLLM computes each request with the adapter that it names, so that nothing has to pause: an
    update has new requests name the new version. Those that go on are ended at vLLM, and made again
    with their tokens so far. Their keys and values are computed again, with the new version.
    """

    def __init__(
        self, adapter: AdapterConfig, *, model: str, config: Mapping[str, Any] | None = None
    ) -> None:
        self._adapter = adapter
        super().__init__(model=model, config=config)
        self._serving: NamedAdapter | None = None
        self._next: NamedAdapter | None = None
        self._replaced: list[NamedAdapter] = []  # that vLLM has still
        self._names = 0  # that were given: version numbers may repeat
        self._open = asyncio.Event()  # for requests to begin
        self._open.set()

    async def start(self) -> None:
        """Start vLLM, and have it load an adapter of zeros: SpecError if it refuses that."""
        await super().start()
        zeros = {name: torch.zeros(shape) for name, shape in self._shapes.items()}
        try:
            trial = await self._load(zeros, version=0)
        except InferenceServerError as error:
            raise SpecError(TARGETS, f"vLLM cannot serve such adapters: {error}") from error
        self._replaced.append(trial)
        await self._unload_idle()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        while True:
            await self._open.wait()
            if self.failure:
                raise RuntimeError(self.failure)
            adapter = self._serving
            if adapter is None:
                raise RuntimeError("no weights have been loaded yet")
            with adapter.used():
                async with aclosing(self._pieces(request, adapter)) as pieces:
                    async for piece in pieces:
                        request = replace(request, begun=piece.after(request.begun))
                        yield piece
                        if piece.finished:
                            return
            if adapter.retired.result() is not PauseMode.KEEP:
                return

    async def _pieces(
        self, request: GenerationRequest, adapter: NamedAdapter
    ) -> AsyncGenerator[NewTokens, None]:
        """What comes until the response ends, or the adapter is retired."""
        body = self._request_body(request, model=adapter.name, cache_salt=adapter.name)
        if body is None:
            yield NewTokens((), (), (), finished=True)
            return
        stops = BegunStops(request, text=self._text)
        async with (
            aclosing(choices(self._server.client, body)) as made,
            aclosing(_until(made, adapter.retired)) as made_in_time,
        ):
            async for choice in made_in_time:
                new = new_tokens(choice, adapter.version, top=request.top_logprobs)
                piece = stops.cut(new)
                if piece.tokens or piece.finished:
                    yield piece
                if piece.finished:
                    return
        if not adapter.retired.done():
            raise InferenceServerError("the stream of a request ended before its response")

    async def _prepare(self, state: Mapping[str, Tensor], *, version: int) -> None:
        if self._next is not None:
            self._replaced.append(self._next)
            self._next = None
        await self._unload_idle()
        self._next = await self._load(state, version=version)

    async def _serve_prepared(self, version: int, *, running: PauseMode, seconds: float) -> None:
        former = self._serving
        try:
            if former is not None and running is PauseMode.WAIT:
                self._open.clear()
                await _idle(former, seconds=seconds)
            self._serving, self._next = self._next, None
            self._prepared, self._version = None, version
        finally:
            self._open.set()
        if former is not None:
            former.retired.set_result(running)
            self._replaced.append(former)
        await self._unload_idle()

    # --- inside --------------------------------------------------------------------------------

    def _weight_arguments(self) -> list[str]:
        bound = next(bound for bound in RANKS if bound >= self._adapter.rank)
        limits = [f"--max-lora-rank={bound}", f"--max-loras={_SLOTS}", f"--max-cpu-loras={_KEPT}"]
        return ["--enable-lora", *limits]

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        found = adapter_shapes(self._source.weights().shapes, self._adapter)
        if not found:
            targets = ", ".join(self._adapter.targets)
            raise SpecError(TARGETS, f"the model has no layer of the names {targets}")
        return found

    def _variables(self) -> dict[str, str]:
        # The routes below; the socket is the agent's own.
        return super()._variables() | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}

    async def _load(self, state: Mapping[str, Tensor], *, version: int) -> NamedAdapter:
        """Have vLLM load an adapter beside those that serve.

        InferenceServerError if it refuses, RuntimeError if there is no room for the files. Where
        some of its ranks may have loaded it and others not, or it gives no answer, that takes it
        out of service.
        """
        name = f"rollcall-{self._names}"
        self._names += 1
        adapter = NamedAdapter(name, version=version, folder=self._folder / name)
        try:
            await asyncio.to_thread(self._write, adapter.folder, state)
            body = {"lora_name": name, "lora_path": str(adapter.folder)}
            client = self._server.client
            await client.post("/v1/load_lora_adapter", body, seconds=PREPARE_SECONDS)
        except (InferenceServerError, TimeoutError) as error:
            if isinstance(error, TimeoutError) or self._settings.tensor_parallel_size > 1:
                self._server.fail(f"vLLM could not load an adapter: {error or 'no answer'}")
            shutil.rmtree(adapter.folder)
            raise
        except OSError as error:
            shutil.rmtree(adapter.folder, ignore_errors=True)
            raise RuntimeError(f"an adapter cannot be written: {error}") from error
        return adapter

    def _write(self, folder: Path, state: Mapping[str, Tensor]) -> None:
        folder.mkdir()
        # Clones: safetensors writes no tensors that share memory.
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
        write_adapter(folder, tensors, self._adapter, base=self._source.path)

    async def _unload_idle(self) -> None:
        """Unload what was replaced and no request names; what vLLM keeps is tried again later."""
        for adapter in [one for one in self._replaced if one.idle.is_set()]:
            client, body = self._server.client, {"lora_name": adapter.name}
            try:
                await client.post("/v1/unload_lora_adapter", body, seconds=CALL_SECONDS)
            except (InferenceServerError, TimeoutError) as error:
                log.warning("vLLM did not unload the adapter %s: %s", adapter.name, error)
                continue
            self._replaced.remove(adapter)
            shutil.rmtree(adapter.folder)


async def _idle(adapter: NamedAdapter, *, seconds: float) -> None:
    """Until no request names it; TimeoutError after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await adapter.idle.wait()
    except TimeoutError:
        raise TimeoutError(f"requests did not end within {seconds:g} s") from None


async def _until(
    choices: AsyncGenerator[dict[str, Any], None], end: asyncio.Future[PauseMode]
) -> AsyncGenerator[dict[str, Any], None]:
    """What comes before `end` is done."""
    while not end.done():
        following = asyncio.ensure_future(anext(choices, None))
        both: set[asyncio.Future[Any]] = {following, end}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not following.done():
                following.cancel()
                await asyncio.wait({following})
        choice = None if following.cancelled() else following.result()
        if choice is None:
            return
        yield choice
