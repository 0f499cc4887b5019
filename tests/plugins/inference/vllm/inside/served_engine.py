"""The engine `vllm` with a real server and weights by version, and what tests ask of the two."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hack.bench.vllm_updates import replay
from rollcall_plugins.inference.vllm.engine import VllmEngine
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.inference_engine import GenerationRequest, PauseMode
from tests.plugins.inference.vllm.inside.conftest import make_model
from tests.unit.rollcall_runtime.rollout.engine_driver import EngineDriver, respond

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel

    from rollcall_protocol.wire.partial_responses import Response
    from rollcall_runtime.rollout.inference_engine import InferenceEngine

PROMPTS = [(5, 9, 11, 40, 7, 33), (1, 2, 3)]
LONG = SamplingConfig(max_tokens=200)
SHORT = SamplingConfig(max_tokens=12)


class Served:
    """The engine, and its models by version."""

    def __init__(self, folder: Path, *, tensor_parallel: int = 1, **more: Any) -> None:
        self.models = [make_model(seed, tied=True) for seed in range(2)]
        self.models[0].generation_config.eos_token_id = None
        self.models[0].config.eos_token_id = None
        self.models[0].save_pretrained(folder)
        config = {"dtype": "float32", "tensorParallelSize": tensor_parallel, **more}
        self.engine = VllmEngine(model=str(folder), config=config)
        self.driver = EngineDriver(self.engine)
        self.version = 0
        self.update()

    def model(self, version: int) -> PreTrainedModel:
        return self.models[version % 2]

    def update(self, running: PauseMode = PauseMode.KEEP) -> None:
        """Serve the next version."""
        self.driver.run(self.updating(running))

    async def updating(self, running: PauseMode = PauseMode.KEEP) -> None:
        await self.prepare()
        await self.serve_prepared(running)

    async def prepare(self) -> None:
        """The next version. Serving it takes a moment then, which a long response outlasts."""
        following = self.version + 1
        weights = self.model(following).named_parameters()
        await self.engine.prepare(weights, version=following)

    async def serve_prepared(
        self, running: PauseMode = PauseMode.KEEP, *, seconds: float = 60
    ) -> None:
        """The version counts from the start of the update."""
        self.version += 1
        weights = self.model(self.version).named_parameters()
        await self.engine.update_weights(
            weights, version=self.version, running=running, seconds=seconds
        )

    def answers(self) -> list[Response]:
        """To two prompts, one after the other, so that only the weights decide each bit."""
        asked = [GenerationRequest(prompt, SHORT, seed=11) for prompt in PROMPTS]
        return [self.driver.run(respond(self.engine, request)) for request in asked]

    def serves_its_version(self) -> bool:
        """Whether the log-probabilities of what it samples are the model's, by this version."""
        groups = self.driver.sample(PROMPTS, group_size=2, seed=1, sampling=[SHORT] * 2)
        found = True
        for prompt, group in zip(PROMPTS, groups, strict=True):
            for response in group:
                own = logprobs(self, GenerationRequest(prompt, SHORT, seed=1), response)
                found &= response.logprobs == pytest.approx(own, abs=1e-4)
                found &= set(response.versions) == {self.version}
        return found


def requests(sampling: SamplingConfig, *, count: int = 4) -> list[GenerationRequest]:
    return [GenerationRequest(PROMPTS[0], sampling, seed=seed) for seed in range(count)]


async def begun(
    engine: InferenceEngine, asked: Iterable[GenerationRequest]
) -> list[asyncio.Task[Response]]:
    """The responses to `asked`, of each of which a token has come."""
    tasks, began = [], []
    for request in asked:
        first = asyncio.Event()
        tasks.append(asyncio.create_task(_respond(engine, request, first)))
        began.append(first.wait())
    await asyncio.gather(*began)
    return tasks


async def _respond(
    engine: InferenceEngine, request: GenerationRequest, first: asyncio.Event
) -> Response:
    response = request.begun
    try:
        async for piece in engine.generate(request):
            first.set()
            response = piece.after(response)
    finally:
        first.set()
    return response


def logprobs(served: Served, request: GenerationRequest, response: Response) -> list[float]:
    """The model's own, of tokens that were all sampled by one version."""
    (version,) = set(response.versions)
    return plain_logprobs(served.model(version), request.prompt, response)


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: tuple[int, ...], response: Response
) -> list[float]:
    """What these weights say of each token, with keys and values of their own."""
    found = model(torch.tensor([[*prompt, *response.tokens]])).logits[0].log_softmax(-1)
    first = len(prompt) - 1
    return [float(found[first + at, token]) for at, token in enumerate(response.tokens)]


def certain(served: Served, prompt: tuple[int, ...], response: Response) -> bool:
    """Whether each token was sampled by the weights of the version that it names.

    Of a response whose keys and values were kept over updates.
    """
    differences = replay.differences(served, prompt, response)
    return all(difference < replay.MIXED for difference in differences)


async def gauge(served: Served, state: str) -> float:
    """How many requests vLLM has in this state, by its own metrics: running or waiting."""
    text = (await served.engine._server.client.get("/metrics", seconds=10)).decode()
    lines = [line for line in text.splitlines() if line.startswith(f"vllm:num_requests_{state}{{")]
    return float(lines[0].rsplit(" ", 1)[1])


def processes(engine: VllmEngine) -> list[int]:
    """Those of vLLM's process group: the server, and its children."""
    assert engine._server._process is not None
    group, found = engine._server._process.pid, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found
