"""A front over counting rollouts, and a client of it that reads as OpenAI's does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from aiohttp.test_utils import unused_port

from rollcall_plugins.front.openai.api_keys import ApiKeys
from rollcall_plugins.front.openai.metrics import FrontMetrics
from rollcall_plugins.front.openai.prompts import PromptReader
from rollcall_plugins.front.openai.recording import Recording, TrajectorySender
from rollcall_plugins.front.openai.server import FrontServer
from rollcall_protocol.data_config import FRONT, DataConfig, DataSource
from rollcall_protocol.front_config import FrontConfig
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_runtime.generation.continued_generation import Generation
from rollcall_runtime.generation.rollout_client import open_session
from rollcall_runtime.models.tokenizer import ModelTokenizer
from tests.plugins.front.openai.memory_store import MemoryStore
from tests.process.engines.tiny_models import tiny_tokenizer
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    POSITIONS,
    VOCABULARY,
    CountingRollout,
    expected,
)

JOB = job_config()
FROM_FRONT = replace(JOB, data=DataConfig(sources=(DataSource(FRONT),)))
ADDRESS = "127.0.0.1"
SOURCE: Any = SimpleNamespace(vocabulary=VOCABULARY, positions=POSITIONS, named_eos=frozenset({2}))


def tokenizer() -> ModelTokenizer:
    return ModelTokenizer(Path("/model"), tiny_tokenizer(), frozenset({2}))


def numbers(at: int, count: int = 24) -> tuple[list[int], tuple[int, ...]]:
    """A prompt of its own, and the tokens of its answer."""
    prompt = [3 + at % 90, 4, 5 + at // 90]
    return prompt, expected(tuple(prompt), count)


@dataclass(slots=True)
class FrontClient:
    """Asks one front; `key` is shown."""

    generation: Generation
    metrics: FrontMetrics
    url: str
    session: aiohttp.ClientSession
    key: str = ""

    async def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.key}"}
        whole = {"model": JOB.model, **body}
        async with self.session.post(self.url + path, json=whole, headers=headers) as answer:
            return answer.status, await answer.json()

    async def chat(self, text: str = "hi", **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        status, body = await self.post("/v1/chat/completions", {"messages": messages, **more})
        assert status == 200, body
        return body

    async def complete(self, prompt: Any, **more: Any) -> dict[str, Any]:
        status, body = await self.post("/v1/completions", {"prompt": prompt, **more})
        assert status == 200, body
        return body

    async def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end as OpenAI's do."""
        found, ended = [], False
        whole = {"model": JOB.model, "stream": True, **body}
        async with self.session.post(self.url + path, json=whole) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                text = line.decode().strip()
                if text == "data: [DONE]":
                    ended = True
                elif text:
                    found.append(json.loads(text.removeprefix("data: ")))
        assert ended, found[-1:]
        return found


@asynccontextmanager
async def front(
    *rollouts: CountingRollout,
    settings: FrontConfig | None = None,
    keys: ApiKeys | None = None,
    with_tokenizer: bool = True,
    job: JobConfig = JOB,
    sender: TrajectorySender | None = None,
    store: MemoryStore | None = None,
    reader: PromptReader | None = None,
) -> AsyncIterator[FrontClient]:
    """A front that knows `rollouts`."""
    metrics = FrontMetrics(namespace="default", job="reverse")
    async with open_session() as session, aiohttp.ClientSession() as asking:
        own = tokenizer() if with_tokenizer else None
        reader = reader or PromptReader(cast("Any", SOURCE), own)
        generation = Generation(session, metrics.moved.inc, reader.bounds)
        generation.replace(ServingRollouts(tuple(rollout.serving for rollout in rollouts)))
        settings = settings or FrontConfig()
        server = FrontServer(
            job=job,
            settings=settings,
            reader=reader,
            recording=Recording(
                job=job,
                settings=settings,
                reader=reader,
                sender=cast("TrajectorySender", sender),
                store=cast("Any", store or MemoryStore()),
                metrics=metrics,
            ),
            generation=generation,
            keys=keys,
            metrics=metrics,
        )
        port = unused_port()
        await server.start(ADDRESS, port)
        try:
            yield FrontClient(generation, metrics, f"http://{ADDRESS}:{port}", asking)
        finally:
            await server.stop()
