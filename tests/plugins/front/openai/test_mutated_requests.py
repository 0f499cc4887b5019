"""Requests with random changes get an answer or a refusal, no traceback, and leave nothing."""

import json
import logging
import random

import pytest

from hack.attacks.random_changes import Fuzz
from tests.plugins.front.openai.front_client import JOB, front
from tests.unit.rollcall_runtime.rollout.counting_rollouts import counting_rollout

COMMON = {
    "model": JOB.model,
    "max_tokens": 3,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 4,
    "n": 2,
    "seed": 2**70 % 2**63,
    "stop": ["x", "yy"],
    "stream": False,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "logit_bias": {},
    "frequency_penalty": 0,
    "min_p": 0,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
REQUESTS = {
    "/v1/chat/completions": COMMON
    | {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    "/v1/completions": COMMON | {"prompt": [[3, 4], [5]], "logprobs": 1},
    "/v1/responses": {
        "model": JOB.model,
        "input": [{"role": "user", "content": "hi"}],
        "tools": [TOOL],
        "max_output_tokens": 3,
    },
    "/v1/trajectories/t-1/reward": {"reward": 1.0, "group": "a"},
}


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_requests_with_random_changes_get_an_answer(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz = Fuzz(random.Random(count))
    async with counting_rollout() as rollout, front(rollout) as client:
        for number in range(count):
            path, body = fuzz.random.choice(list(REQUESTS.items()))
            text = fuzz.of_message(json.dumps(body))
            data = text.encode()
            if number % 4 == 0:
                data = fuzz.of_bytes(data)
            async with client.session.post(client.url + path, data=data) as answer:
                found = await answer.read()
                assert answer.status < 500, (path, text[:300], found[:300])
        assert (await client.complete([3], max_tokens=3))["choices"]
        assert rollout.engine.running == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("top_p", 1e-46, 400),
        ("top_p", 1e-45, 400),
        ("top_p", 5e-324, 400),
        ("top_p", 0.000001, 200),
        ("temperature", 1e-46, 200),  # the likeliest token
        ("temperature", 3.4e38, 400),
        ("temperature", -1e-46, 400),
        ("top_k", 2**31, 400),
        ("top_k", 10**9, 200),
        ("top_k", 2**70, 400),
        ("min_p", 1, 400),
        ("presence_penalty", 2.0, 400),
        ("frequency_penalty", 1e-46, 400),
        ("repetition_penalty", 1e38, 400),
        ("logit_bias", {"3": 1e38}, 400),
        ("seed", 2**70, 400),
        ("seed", -(2**63), 200),
        ("max_tokens", 2**31, 400),
        ("max_tokens", 2**70, 400),
        ("stop", ["a"] * 17, 400),
        ("stop", ["a" * 65], 400),
        ("stop", [""], 400),
        ("stop", ["\ud800"], 400),
        ("n", 129, 400),
    ],
)
async def test_settings_at_the_edge_are_refused_by_name_or_mean_what_they_say(
    field: str, value: object, status: int
) -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        body = {"prompt": [3], "max_tokens": 3, field: value}
        found, answer = await client.post("/v1/completions", body)
        assert found == status, answer
        if status == 400:
            assert answer["error"]["param"] == field, answer
            assert not rollout.engine.requests
