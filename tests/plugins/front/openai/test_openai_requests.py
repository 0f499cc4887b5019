"""Requests of OpenAI's clients: what is read, and what is refused by its name."""

from typing import Any

import pytest

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.openai_requests import read_chat, read_completion
from rollcall_protocol.sampling_config import SamplingConfig

JOB = SamplingConfig(max_tokens=50, temperature=0.8, top_p=0.9, top_k=40, column="own")
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": MESSAGES}
TEXT = {"model": "m", "prompt": "hi"}


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


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-300, 0.0009])
def test_temperature_0_takes_the_likeliest_token(temperature: float) -> None:
    """So does one that is nearly 0, by which logits would become infinite."""
    found = read_chat({**CHAT, "temperature": temperature}, JOB)
    assert (found.sampling.top_k, found.sampling.top_p) == (1, 1.0)


def test_a_temperature_from_0_001_on_is_taken_as_it_is() -> None:
    found = read_chat({**CHAT, "temperature": 0.001}, JOB).sampling
    assert (found.temperature, found.top_p, found.top_k) == (0.001, 0.9, 40)


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
    ],
)
def test_what_has_no_effect_is_taken(more: dict[str, Any]) -> None:
    read_chat({**CHAT, **more}, JOB)


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
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_p": 0.05}, "min_p"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
        ({"top_logprobs": 3}, "top_logprobs"),
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
