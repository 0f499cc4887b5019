"""OpenAI's Responses: items become messages, and an answer becomes items."""

import json
from typing import Any

import pytest

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.responses import read_response
from rollcall_protocol.sampling_config import SamplingConfig
from tests.plugins.front.openai.front_client import FROM_FRONT, JOB, FrontClient
from tests.plugins.front.openai.scripted_model import CALL, WEATHER, scripted, tool_tokenizer
from tests.plugins.front.openai.test_server import Sender, reward

TOOL = {"type": "function", "strict": True, **WEATHER["function"]}
ASK = {"instructions": "be", "tools": [TOOL], "include": [], "store": False}


async def events(client: FrontClient, body: Any) -> list[dict[str, Any]]:
    """Those of a stream, which are named as OpenAI's, and end without a [DONE]."""
    whole = {"model": JOB.model, "stream": True, **body}
    async with client.session.post(f"{client.url}/v1/responses", json=whole) as answer:
        assert answer.status == 200, await answer.text()
        text = await answer.text()
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


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
    assert len(sender.sent[0].parts) == 1
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
        ({"background": True}, "background"),
        ({"n": 2}, "n"),
        ({"messages": [QUESTION]}, "messages"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema"}}}, "response_format"),
        ({"text": {"verbosity": "low"}}, "verbosity"),
        ({"text": {"new": 1}}, "new"),
        ({"text": "plain"}, "text"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
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


def test_the_format_of_the_text_is_a_schema() -> None:
    own = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "a", "schema": own, "strict": True}
    asked = read_response({"model": "m", "input": "hi", "text": {"format": form}}, SamplingConfig())
    assert json.loads(asked.json_schema) == own


async def test_a_stream_has_the_events_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(monkeypatch, f"Hm. {CALL}\n{CALL}") as (client, _):
        found = await events(client, {**ASK, "input": [QUESTION]})
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    text = "response.output_text.delta"
    kinds = [event["type"].removeprefix("response.") for event in found if event["type"] != text]
    item = ["output_item.added", "output_item.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    assert kinds == [
        *("created", "in_progress", item[0], "content_part.added", "output_text.done"),
        *("content_part.done", item[1]),
        *(item[0], *arguments, item[1]) * 2,
        "completed",
    ]
    assert [event["delta"] for event in found if event["type"] == text] == ["H", "m", "."]
    whole = found[-1]["response"]
    assert whole["usage"]["output_tokens"] == len(f"Hm. {CALL}\n{CALL}") + 1
    done = [e for e in found if e["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == whole["output"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    calls = [e for e in found if e["type"] == "response.function_call_arguments.done"]
    assert [(e["item_id"], e["arguments"]) for e in calls] == [
        (item["id"], '{"city": "Bonn"}') for item in whole["output"][1:]
    ]
    assert found[0]["response"]["id"] == whole["id"]


@pytest.mark.parametrize(
    ("said", "kinds"), [(CALL, ["function_call"]), ("", ["message"])], ids=["call", "nothing"]
)
async def test_a_stream_without_text_has_the_items_of_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, said: str, kinds: list[str]
) -> None:
    async with scripted(monkeypatch, said) as (client, _):
        found = await events(client, {**ASK, "input": [QUESTION]})
    for what in ("added", "done"):
        chosen = [e for e in found if e["type"] == f"response.output_item.{what}"]
        assert [event["item"]["type"] for event in chosen] == kinds
    assert [item["type"] for item in found[-1]["response"]["output"]] == kinds


async def test_a_stream_that_was_cut_ends_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.plugins.front.openai import scripted_model  # noqa: PLC0415

    saying = scripted_model.saying
    monkeypatch.setattr(scripted_model, "saying", lambda *said: saying(*said, ended=False))
    async with scripted(monkeypatch, "It") as (client, _):
        found = await events(client, {"input": "How?", "max_output_tokens": 2})
    assert found[-1]["type"] == "response.incomplete"
    assert found[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_what_has_no_effect_is_taken() -> None:
    text = {"format": {"type": "text"}, "verbosity": "medium"}
    more = {"reasoning": {"effort": None}, "text": text, "include": [], "top_logprobs": 0}
    asked = read_response({"model": "m", "input": "hi", "stream": False, **more}, SamplingConfig())
    assert asked.messages == ({"role": "user", "content": "hi"},)
