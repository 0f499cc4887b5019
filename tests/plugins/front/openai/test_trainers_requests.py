"""What the vLLM clients of trainers send, and what they read of the answers.

TRL 1.16.0: trl/generation/vllm_client.py (`check_server`, `generate`, `parse_logprobs`), and
trl/experimental/async_grpo (vllm_client.py, async_rollout_worker.py).
"""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcall_plugins.front.openai.api_keys import ApiKeys
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from tests.plugins.front.openai.front_client import FROM_FRONT, JOB, front, numbers
from tests.unit.rollcall_runtime.rollout.counting_rollouts import counting_rollout

OF_TRL: dict[str, Any] = {  # what `VLLMClient.generate` sends beside its prompts
    "n": 2,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "max_tokens": 6,
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}


async def test_prompts_of_one_request_are_answered_in_their_order() -> None:
    asked = [numbers(at, count=6) for at in range(3)]
    async with counting_rollout() as rollout, front(rollout) as client:
        body = await client.complete([prompt for prompt, _ in asked], **OF_TRL)
        seeds = [request.seed for request in rollout.engine.requests]
    choices = body["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert len(set(seeds)) == 6
    for at, choice in enumerate(choices):
        prompt, expected = asked[at // 2]
        assert choice["prompt_token_ids"] == prompt
        assert choice["token_ids"] == list(expected)
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in expected]
        assert choice["logprobs"]["token_logprobs"] == [-0.5] * 6
        top = choice["logprobs"]["top_logprobs"]
        assert top == [{f"token_id:{token}": -0.5} for token in expected]
    assert body["usage"] == {"prompt_tokens": 9, "completion_tokens": 36, "total_tokens": 45}


async def test_texts_of_one_request_are_encoded_apart() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        both = await client.complete(["hi", "there"], max_tokens=4)
        alone = [await client.complete(text, max_tokens=4) for text in ("hi", "there")]
    texts = [choice["text"] for choice in both["choices"]]
    assert texts == [body["choices"][0]["text"] for body in alone]


async def test_one_prompt_that_the_model_cannot_take_refuses_the_request() -> None:
    async with counting_rollout() as rollout, front(rollout) as client:
        status, body = await client.post("/v1/completions", {"prompt": [[3, 4], [500]]})
        assert not rollout.engine.requests
    assert (status, body["error"]["param"]) == (400, "prompt")


async def test_the_weight_version_of_each_token_is_said_with_its_number() -> None:
    prompt, _ = numbers(0)
    async with counting_rollout(number=3) as rollout, front(rollout) as client:
        body = await client.complete(prompt, max_tokens=5, return_token_ids=True)
        plain = await client.complete(prompt, max_tokens=5)
        asked = {"prompt": prompt, "max_tokens": 5, "return_token_ids": True}
        *pieces, last = await client.events("/v1/completions", asked)
    assert body["choices"][0]["weight_versions"] == [3] * 5
    assert "weight_versions" not in plain["choices"][0]
    assert last["choices"][0]["weight_versions"] == [3] * 5, "of all tokens, in the last piece"
    assert all("weight_versions" not in piece["choices"][0] for piece in pieces)


async def test_several_prompts_are_no_trajectory() -> None:
    async with counting_rollout() as rollout, front(rollout, job=FROM_FRONT) as client:
        status, body = await client.post("/v1/completions", {"prompt": [[3], [4]]})
        assert not rollout.engine.requests
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert "send a request each" in body["error"]["message"]


async def health(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(f"{url}/health") as answer:
        return answer.status


@pytest.mark.parametrize("with_keys", [False, True])
async def test_the_front_is_healthy_while_a_rollout_serves(tmp_path: Path, with_keys: bool) -> None:
    """`check_server` of TRL shows no key, and waits for 200."""
    path = tmp_path / "api-keys"
    path.write_text("a" * 20)
    keys = ApiKeys(path) if with_keys else None
    async with counting_rollout() as rollout, front(rollout, keys=keys) as client:
        assert await health(client.session, client.url) == 200
        client.generation.replace(ServingRollouts(()))
        assert await health(client.session, client.url) == 503


async def test_the_list_of_models_says_how_many_positions_there_are() -> None:
    async with (
        counting_rollout() as rollout,
        front(rollout) as client,
        client.session.get(f"{client.url}/v1/models") as answer,
    ):
        (model,) = (await answer.json())["data"]
    assert (model["id"], model["max_model_len"]) == (JOB.model, 256)
