"""A model of tools whose answers are given: what it reads is written by a template as Qwen's."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollcall_plugins.front.openai.prompts import PromptReader
from rollcall_plugins.front.openai.recording import TrajectorySender
from rollcall_plugins.front.openai.tool_calls import open_tool_parser
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
from rollcall_runtime.models.tokenizer import ModelTokenizer
from tests.plugins.front.openai.front_client import JOB, FrontClient, front
from tests.process.engines.tiny_models import tiny_tokenizer
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    VOCABULARY,
    CountingEngine,
    CountingRollout,
    counting_rollout,
)

POSITIONS = 16_384  # a token is a character
TEMPLATE = """\
{%- if tools -%}<|im_start|>system
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
Write <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>{{ '\\n' }}{%- endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{%- set called = {"name": call.function.name, "arguments": call.function.arguments} -%}
{{ '\\n<tool_call>\\n' + (called | tojson) + '\\n</tool_call>' }}
{%- endfor -%}<|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}
"""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


def tool_tokenizer(template: str = TEMPLATE) -> ModelTokenizer:
    library = tiny_tokenizer()
    library.chat_template = template
    return ModelTokenizer(Path("/model"), library, frozenset({2}))


def tool_reader(tokenizer: ModelTokenizer | None = None, setting: str = "auto") -> PromptReader:
    tokenizer = tokenizer or tool_tokenizer()
    source: Any = SimpleNamespace(vocabulary=VOCABULARY, positions=POSITIONS, eos=frozenset({2}))
    return PromptReader(source, tokenizer, open_tool_parser(setting, tokenizer))


def saying(*answers: str, ended: bool = True) -> Callable[..., Any]:
    """A `CountingEngine.generate` that answers this, each ended by the end of a turn."""
    left = list(answers)

    async def generate(
        engine: CountingEngine, request: GenerationRequest
    ) -> AsyncGenerator[NewTokens, None]:
        engine.requests.append(request)
        tokens = [*tool_tokenizer().encode(left.pop(0)), *([2] if ended else [])]
        for at, token in enumerate(tokens):
            yield NewTokens((token,), (-0.5,), (0,), finished=at == len(tokens) - 1)

    return generate


@asynccontextmanager
async def scripted(
    monkeypatch: Any,
    *answers: str,
    reader: PromptReader | None = None,
    job: JobConfig = JOB,
    sender: TrajectorySender | None = None,
) -> AsyncIterator[tuple[FrontClient, CountingRollout]]:
    """A front whose model says `answers`, one a request."""
    monkeypatch.setattr(CountingEngine, "generate", saying(*answers))
    job = replace(
        job,
        algorithm=replace(job.algorithm, sampling=replace(job.algorithm.sampling, max_tokens=900)),
    )
    async with (
        counting_rollout(positions=POSITIONS) as rollout,
        front(rollout, reader=reader or tool_reader(), job=job, sender=sender) as client,
    ):
        yield client, rollout


def messages(*said: tuple[str, str]) -> Sequence[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in said]
