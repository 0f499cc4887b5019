"""What the rollouts' engine must be able to do: likely tokens, and answers of a schema."""

import json
from typing import Any

import pytest

from rollcall_plugins.front.openai.openai_answers import AnswerHead, logprobs_of
from tests.plugins.front.openai.front_client import front, tokenizer
from tests.plugins.front.openai.test_server import (
    ASK,
    PROMPT,
    Sender,
    reward,
    say,
    training,
)
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    CountingEngine,
    counting_rollout,
    expected,
)


async def test_the_likeliest_tokens_are_those_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingEngine, "gives_top", True)
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    async with counting_rollout() as rollout, front(rollout) as client:
        chat = await client.chat(max_tokens=3, logprobs=True, top_logprobs=2)
        both = {**asked, "logprobs": True, "top_logprobs": 2}
        events = await client.events("/v1/chat/completions", both)
        text = await client.complete("hi", max_tokens=2, logprobs=3)
        own = rollout.engine.requests[-1].prompt
    content = chat["choices"][0]["logprobs"]["content"]
    known = tokenizer()
    tokens = expected(tuple(known.encode(PROMPT)), 3)
    assert [[top["token"] for top in one["top_logprobs"]] for one in content] == [
        [known.decode([token]), known.decode([token - 1])] for token in tokens
    ]
    assert {top["logprob"] for one in content for top in one["top_logprobs"]} == {-0.5, -1.5}
    streamed = [e["choices"][0]["logprobs"]["content"] for e in events]
    assert [entry for piece in streamed for entry in piece] == content
    token = expected(own, 1)[0]
    first = text["choices"][0]["logprobs"]["top_logprobs"][0]
    assert list(first.items()) == [(known.decode([token - n]), -0.5 - n) for n in range(3)]


def test_of_tokens_with_one_text_the_likeliest_counts_and_the_sampled_one_before_all() -> None:
    head = AnswerHead("a", "m", 1, chat=False)
    top = [[("x", -0.1), ("y", -1.0), ("x", -3.0)]]
    found = logprobs_of(head, ["y"], [-2.0], top, offset=0)
    assert list(found["top_logprobs"][0].items()) == [("x", -0.1), ("y", -2.0)]


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/completions", {"logprobs": 1}, "logprobs above 0"),
        ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "response_format"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_rollouts_engine_cannot_is_refused_by_its_name(
    path: str, more: dict[str, Any], named: str, stream: bool
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    body = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}.get(path, body)
    async with counting_rollout() as rollout, front(rollout) as client:
        status, refused = await client.post(path, {**body, **more, "stream": stream})
        assert rollout.engine.requests == []
    assert status == 400
    assert named in refused["error"]["message"]
    assert "leave it out, or have the rollouts use vllm" in refused["error"]["message"]


async def test_a_schema_goes_to_the_engine_and_its_answer_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingEngine, "constrains", True)
    sender = Sender()
    async with counting_rollout() as rollout, training(rollout, sender) as client:
        await say(client, ASK, response_format={"type": "json_object"})
        (asked,) = rollout.engine.requests
        status, body = await reward(client, reward=1)
    assert json.loads(asked.json_schema) == {"type": "object"}
    assert status == 409
    assert "response_format" in body["error"]["message"]
    assert sender.sent == []


async def test_a_schema_needs_a_tokenizer() -> None:
    async with counting_rollout() as rollout, front(rollout, with_tokenizer=False) as client:
        body = {"prompt": [3], "response_format": {"type": "json_object"}}
        status, refused = await client.post("/v1/completions", body)
    assert (status, refused["error"]["param"]) == (400, "response_format")
