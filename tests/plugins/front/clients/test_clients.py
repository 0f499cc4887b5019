"""Clients of agents as they come, with a tool, against a front whose model's answers are given.

Their packages are in no environment of the project; where one is not installed, its test is left
out. Each has two turns, which become one sample.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.plugins.front.openai.front_client import FROM_FRONT, JOB
from tests.plugins.front.openai.scripted_model import CALL, WEATHER, scripted
from tests.plugins.front.openai.test_server import Sender, reward

# What clients deprecate, and leave open when the event loop ends, is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")
HEADERS = {"X-Rollcall-Trajectory": "t-1"}
SAID = (f"I look. {CALL}", "It rains.")
ASK = {"role": "user", "content": "How is it in Bonn?"}


@asynccontextmanager
async def two_turns(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, str] = SAID
) -> AsyncIterator[str]:
    """The URL of a front; behind the test its two turns must have been one trajectory."""
    sender: Any = Sender()
    async with scripted(monkeypatch, *said, job=FROM_FRONT, sender=sender) as (client, rollout):
        yield f"{client.url}/v1"
        assert len(rollout.engine.requests) == 2
        status, body = await reward(client, reward=1.0)
    assert (status, body) == (200, {"verdict": "counted"})
    (part,) = sender.sent[0].parts
    assert part.sample.versions.count(0) == sum(map(len, said)) + 2


def weather(city: str) -> str:
    """Of a city"""
    assert city == "Bonn"
    return "rain"


def opened(url: str) -> Any:
    openai = pytest.importorskip("openai")
    return openai.AsyncOpenAI(base_url=url, api_key="k", default_headers=HEADERS, max_retries=0)


async def test_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    async with two_turns(monkeypatch) as url:
        client = opened(url)
        model = (await client.models.retrieve(JOB.model)).id
        asked = {"model": model, "tools": [WEATHER]}
        answer = await client.chat.completions.create(messages=[ASK], **asked)
        message = answer.choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        turn = [ASK, message.model_dump(), result]
        answer = await client.chat.completions.create(messages=turn, **asked)
        assert answer.choices[0].message.content == "It rains."


async def test_openai_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    async with two_turns(monkeypatch) as url:
        client = opened(url)
        strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        asked: Any = {"model": JOB.model, "tools": [strict]}
        async with client.chat.completions.stream(messages=[ASK], **asked) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        turn = [ASK, message.model_dump(), result]
        async with client.chat.completions.stream(messages=turn, **asked) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        assert message.content == "It rains."


async def test_openai_responses_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    tool = {"type": "function", **WEATHER["function"], "strict": False}
    async with two_turns(monkeypatch) as url:
        client = opened(url)
        asked: Any = {"model": JOB.model, "tools": [tool]}
        async with client.responses.stream(input=[ASK], **asked) as stream:
            events = [event async for event in stream]
            message, call = (await stream.get_final_response()).output
        deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
        assert ("".join(deltas), events[-1].type) == ("I look.", "response.completed")
        assert (message.content[0].text, call.arguments) == ("I look.", '{"city": "Bonn"}')
        own = call.model_dump(include={"type", "call_id", "name", "arguments"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        turn = [ASK, message.model_dump(), own, result]
        text = ""
        async for event in await client.responses.create(input=turn, stream=True, **asked):
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "It rains."


@pytest.mark.parametrize("stream", [False, True])
async def test_litellm(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    litellm = pytest.importorskip("litellm")

    async def ask(url: str, messages: list[Any]) -> Any:
        answer = await litellm.acompletion(
            model=f"openai/{JOB.model}",
            api_base=url,
            api_key="k",
            messages=messages,
            tools=[WEATHER],
            extra_headers=HEADERS,
            stream=stream,
        )
        if stream:
            answer = litellm.stream_chunk_builder([chunk async for chunk in answer])
        return answer.choices[0].message

    async with two_turns(monkeypatch) as url:
        message = await ask(url, [ASK])
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        message = await ask(url, [ASK, message.model_dump(), result])
        assert message.content == "It rains."


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def test_openai_agents(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    agents.set_tracing_disabled(True)
    async with two_turns(monkeypatch) as url:
        model = getattr(agents, kind)(JOB.model, opened(url))
        tools = [agents.function_tool(weather)]
        agent = agents.Agent(name="a", instructions="be", model=model, tools=tools)
        result = await agents.Runner.run(agent, "How is it in Bonn?")
        assert result.final_output == "It rains."


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
async def test_openai_agents_streamed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    agents.set_tracing_disabled(True)
    async with two_turns(monkeypatch) as url:
        model = getattr(agents, kind)(JOB.model, opened(url))
        tools = [agents.function_tool(weather)]
        agent = agents.Agent(name="a", instructions="be", model=model, tools=tools)
        result = agents.Runner.run_streamed(agent, "How is it in Bonn?")
        async for _ in result.stream_events():
            pass
        assert result.final_output == "It rains."


@pytest.mark.parametrize("stream", [False, True])
async def test_pydantic_ai(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    # `run_stream` ends with the first text, also where a call follows it.
    async with two_turns(monkeypatch, (CALL, SAID[1])) as url:
        provider = providers.OpenAIProvider(openai_client=opened(url))
        model = models.OpenAIChatModel(JOB.model, provider=provider)
        agent = pydantic_ai.Agent(model, instructions="be", tools=[weather])
        if stream:
            async with agent.run_stream("How is it in Bonn?") as run:
                assert await run.get_output() == "It rains."
        else:
            assert (await agent.run("How is it in Bonn?")).output == "It rains."


async def test_verifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = pytest.importorskip("verifiers.legacy.envs.tool_env")
    clients = pytest.importorskip("verifiers.legacy.clients.openai_chat_completions_client")
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"prompt": [ASK], "answer": ""}])
    async with two_turns(monkeypatch) as url:
        env = envs.ToolEnv(tools=[weather], dataset=rows, eval_dataset=rows)
        client = clients.OpenAIChatCompletionsClient(opened(url))
        state = await env.rollout(env.get_dataset()[0], client, JOB.model, {})
        assert state["completion"][-1].content == "It rains."
