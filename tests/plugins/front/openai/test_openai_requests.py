"""Requests of OpenAI's clients: what is read, and what is refused by its name."""

import json
from typing import Any

import pytest

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.openai_requests import read_chat, read_completion
from rollcall_plugins.front.openai.responses import read_response
from rollcall_protocol.sampling_config import SamplingConfig

JOB = SamplingConfig(max_tokens=50, temperature=0.8, top_p=0.9, top_k=40, column="own")
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": MESSAGES}
TEXT = {"model": "m", "prompt": "hi"}


TOOL = {"type": "function", "function": {"name": "a"}}


def schema(own: Any) -> dict[str, Any]:
    form = {"name": "own", "strict": True, "schema": own}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def called(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_what_is_not_set_is_the_jobs() -> None:
    found = read_chat(CHAT, JOB).sampling
    assert (found.max_tokens, found.temperature, found.top_p, found.top_k) == (50, 0.8, 0.9, 40)
    assert found.column == "", "it is of rows"
    asked = read_chat(CHAT, JOB)
    flags = [asked.stream, asked.include_usage, asked.logprobs, asked.return_token_ids]
    assert (asked.n, flags) == (1, [False] * 4)


def test_what_is_set_counts() -> None:
    body = {**CHAT, "max_completion_tokens": 7, "temperature": 1.5, "top_p": 1, "stop": "x", "n": 3}
    found = read_chat({**body, "seed": 4, "stream": True, "logprobs": True}, JOB)
    own = found.sampling
    assert (own.max_tokens, own.temperature, own.top_p, own.stop) == (7, 1.5, 1.0, ("x",))
    assert (found.n, found.seed, found.stream, found.logprobs) == (3, 4, True, True)


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-300, 0.0099])
def test_temperature_0_takes_the_likeliest_token(temperature: float) -> None:
    """So does one that is nearly 0, by which logits would become infinite."""
    found = read_chat({**CHAT, "temperature": temperature}, JOB)
    assert (found.sampling.top_k, found.sampling.top_p) == (1, 1.0)


def test_a_temperature_from_0_01_on_is_taken_as_it_is() -> None:
    found = read_chat({**CHAT, "temperature": 0.01}, JOB).sampling
    assert (found.temperature, found.top_p, found.top_k) == (0.01, 0.9, 40)


def test_two_requests_without_a_seed_differ() -> None:
    assert read_chat(CHAT, JOB).seed != read_chat(CHAT, JOB).seed


def test_contents_in_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = read_chat({**CHAT, "messages": [{"role": "user", "content": parts}]}, JOB)
    assert found.messages == ({"role": "user", "content": "ab"},)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ("hi",)),
        ([4, 5], ((4, 5),)),
        (["hi"], ("hi",)),
        ([[4, 5]], ((4, 5),)),
        (["hi", "there"], ("hi", "there")),
        ([[4, 5], [6]], ((4, 5), (6,))),
    ],
)
def test_prompts_are_texts_or_tokens(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert read_completion({**TEXT, "prompt": prompt}, JOB).prompts == expected


def test_answers_of_a_request_are_bounded() -> None:
    prompts = [[3]] * 33
    assert len(read_completion({**TEXT, "prompt": prompts, "n": 124}, JOB).prompts) == 33
    with pytest.raises(
        BadRequestError, match="33 prompts with n 125 ask for more than 4096"
    ) as error:
        read_completion({**TEXT, "prompt": prompts, "n": 125}, JOB)
    assert error.value.field == "prompt"


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me", "metadata": {}, "store": False},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "tools": [], "logit_bias": {}},
        {"response_format": {"type": "text"}, "temperature": None, "unknown": None},
        {"repetition_penalty": 1.0, "min_p": 0.0, "length_penalty": 1, "use_beam_search": False},
        {"ignore_eos": False, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True},
        {"chat_template_kwargs": {}, "add_generation_prompt": True},
        {"tool_choice": "auto", "parallel_tool_calls": True, "modalities": ["text"]},
        {"reasoning_effort": None, "prediction": None, "top_logprobs": 0, "tool_choice": "none"},
        {"logit_bias": {"5": None}, "stream_options": {"include_usage": None}},
        {"stream_options": {"include_obfuscation": False}, "chat_template_kwargs": {"a": None}},
        {"response_format": {"type": "text", "json_schema": None}, "logprobs": None},
    ],
)
def test_what_has_no_effect_is_taken(more: dict[str, Any]) -> None:
    assert not read_chat({**CHAT, **more}, JOB).json_schema


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("presence_penalty", [0, 0.0, -0.0, None]),
        ("frequency_penalty", [0, 0.0, -0.0, None]),
        ("repetition_penalty", [1, 1.0, None]),
        ("logit_bias", [{}, None]),
    ],
)
@pytest.mark.parametrize(
    ("read", "body"),
    [(read_chat, CHAT), (read_completion, TEXT), (read_response, {"model": "m", "input": "hi"})],
)
def test_what_would_change_the_distribution_is_taken_when_it_does_not(
    read: Any, body: dict[str, Any], name: str, values: list[Any]
) -> None:
    for value in values:
        assert read({**body, name: value}, JOB).sampling == read(body, JOB).sampling
    wrong: Any = {"5": -100} if name == "logit_bias" else 0.5
    with pytest.raises(BadRequestError, match="remove it") as caught:
        read({**body, name: wrong}, JOB)
    assert caught.value.field == name


@pytest.mark.parametrize(("read", "body"), [(read_chat, CHAT), (read_completion, TEXT)])
def test_a_response_format_is_a_schema(read: Any, body: dict[str, Any]) -> None:
    own = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert json.loads(read({**body, **schema(own)}, JOB).json_schema) == own
    found = read({**body, "response_format": {"type": "json_object"}}, JOB).json_schema
    assert json.loads(found) == {"type": "object"}


def test_a_response_format_goes_with_tools_that_may_not_be_called() -> None:
    assert read_chat(
        {**CHAT, **schema({}), "tools": [TOOL], "tool_choice": "none"}, JOB
    ).json_schema


def test_the_likeliest_tokens_are_counted() -> None:
    chat = read_chat({**CHAT, "logprobs": True, "top_logprobs": 20}, JOB)
    text = read_completion({**TEXT, "logprobs": 20}, JOB)
    assert [(asked.logprobs, asked.top_logprobs) for asked in (chat, text)] == [(True, 20)] * 2
    assert read_completion({**TEXT, "top_logprobs": 0, "logprobs": 0}, JOB).logprobs
    for more, field in [({"logprobs": 21}, "logprobs"), ({"top_logprobs": 1}, "top_logprobs")]:
        with pytest.raises(BadRequestError) as caught:
            read_completion({**TEXT, **more}, JOB)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": 3}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (schema(3), "response_format"),
        (schema({"title": "x" * 2**15}), "response_format"),
        ({**schema({}), "tools": [TOOL]}, "response_format"),
        ({"frequency_penalty": -0.1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stream_options": {"include_obfuscation": True}}, "include_obfuscation"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_p": 0.05}, "min_p"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"temprature": 1}, "temprature"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 11}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 2**31}, "top_k"),
        ({"max_completion_tokens": 2**21}, "max_completion_tokens"),
        ({"max_tokens": 2**21}, "max_tokens"),
        ({"stop": ["x" * 65]}, "stop"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "messages[0]",
        ),
        ({"messages": [{**called("{}"), "role": "user", "content": ""}]}, "messages[0]"),
        ({"messages": [called('{"a": 1')]}, "messages[0]"),
        ({"messages": [called("[]")]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0]"),
        ({"n": 129}, "n"),
        ({"model": None}, "model"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(
    more: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_chat({**CHAT, **more}, JOB)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "prompt", ["", [], ["a", ""], [1, "a"], ["a", 1], [[1], []], [[[1]]], 3, [True], None]
)
def test_a_prompt_that_is_neither_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_completion({**TEXT, "prompt": prompt}, JOB)
    assert caught.value.field == "prompt"
