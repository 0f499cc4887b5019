"""OpenAI's Responses: items become messages, and an answer becomes items."""

from typing import Any

import pytest

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.responses import read_response
from rollcall_protocol.sampling_config import SamplingConfig
from tests.plugins.front.openai.front_client import FROM_FRONT
from tests.plugins.front.openai.scripted_model import CALL, WEATHER, scripted, tool_tokenizer
from tests.plugins.front.openai.test_server import Sender, reward

TOOL = {"type": "function", "strict": True, **WEATHER["function"]}
ASK = {"instructions": "be", "tools": [TOOL], "include": [], "store": False}
QUESTION = {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]}


async def test_a_call_and_its_result_are_items_of_one_trajectory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender: Any = Sender()
    said = (f"I look.{CALL}", "It rains.")
    async with scripted(monkeypatch, *said, job=FROM_FRONT, sender=sender) as (client, rollout):
        client.session.headers["X-Rollcall-Trajectory"] = "t-1"
        status, first = await client.post("/v1/responses", {**ASK, "input": [QUESTION]})
        assert status == 200, first
        message, call = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        items = [QUESTION, message, call, result]
        _, second = await client.post("/v1/responses", {**ASK, "input": items})
        assert (await reward(client, reward=1.0))[0] == 200
        (_, asked) = rollout.engine.requests
    assert (first["object"], first["status"]) == ("response", "completed")
    assert message["content"] == [{"type": "output_text", "text": "I look.", "annotations": []}]
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        "weather",
        '{"city": "Bonn"}',
    )
    assert [item["content"][0]["text"] for item in second["output"]] == ["It rains."]
    used = second["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (len(asked.prompt), 10)
    read = tool_tokenizer().decode(asked.prompt, special=True)
    assert "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nHow is it?<|im_end|>" in read
    assert read.endswith("<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n")


async def test_an_answer_that_was_cut_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.plugins.front.openai import scripted_model  # noqa: PLC0415

    saying = scripted_model.saying
    monkeypatch.setattr(scripted_model, "saying", lambda *said: saying(*said, ended=False))
    async with scripted(monkeypatch, "It") as (client, _):
        _, body = await client.post("/v1/responses", {"input": "How?", "max_output_tokens": 2})
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"stream": True}, "stream"),
        ({"background": True}, "background"),
        ({"n": 2}, "n"),
        ({"messages": [QUESTION]}, "messages"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_response({"model": "m", "input": "hi", **more}, SamplingConfig())
    assert caught.value.field == field


def test_what_has_no_effect_is_taken() -> None:
    more = {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "include": []}
    asked = read_response({"model": "m", "input": "hi", "stream": False, **more}, SamplingConfig())
    assert asked.messages == ({"role": "user", "content": "hi"},)
