"""Requests in the form of OpenAI's API: what they ask for, and why they cannot be answered."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.chat_messages import read_messages, read_tools
from rollcall_plugins.front.openai.neutral_settings import check_neutral
from rollcall_plugins.front.openai.response_format import read_response_format
from rollcall_protocol.sampling_config import MIN_TEMPERATURE, SamplingConfig
from rollcall_protocol.wire.generation import MAX_TOP_LOGPROBS

MOST_CHOICES = 128
MOST_ANSWERS = 4096  # of a request: its prompts, each with its choices
_MAX_SEED = 2**63
_LARGEST = 1e9  # of numbers that are not whole

# What has no effect here, and no other meaning than to the client or to OpenAI's own service.
_WITHOUT_EFFECT = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
}
# Of other settings, the values that say what happens anyway.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "use_beam_search": (False,),
}
_STREAM_OPTIONS = {"include_usage", "include_obfuscation"}
_COMMON = {
    *("model", "n", "max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "stream"),
    *("stream_options", "logprobs", "return_token_ids", "return_tokens_as_token_ids"),
    "response_format",
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What one request asks for: answers to `messages`, or to each of `prompts`, texts or tokens.

    `names_length`: whether it says itself how many tokens an answer may have.
    `tools`: what the chat template writes; if `may_call`, the answer is read for calls of them.
    `json_schema`: the answer is JSON of it, if there is one. `top_logprobs`: how many of the
    likeliest tokens are in the answer beside each of its own.
    `include_usage`: a stream ends with the numbers of tokens. `tokens_by_number`: a token's text,
    beside its log-probability, is its number.
    """

    model: str
    sampling: SamplingConfig
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    may_call: bool = True
    prompts: tuple[str | tuple[int, ...], ...] = ()
    n: int = 1
    seed: int = 0
    stream: bool = False
    names_length: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    json_schema: str = ""
    return_token_ids: bool = False
    tokens_by_number: bool = False

    @property
    def chat(self) -> bool:
        """Whether the answer is a chat's."""
        return self.messages is not None

    @property
    def prompt_field(self) -> str:
        """The field that the prompt stands in."""
        return "messages" if self.chat else "prompt"


def read_chat(body: Any, sampling: SamplingConfig) -> CompletionRequest:
    """A request of /v1/chat/completions; `sampling` holds what it does not set. BadRequestError."""
    known = {*_COMMON, "messages", "max_completion_tokens", "tools", "tool_choice", "top_logprobs"}
    fields = _fields(body, known)
    asked = _common(fields, sampling, longest="max_completion_tokens")
    logprobs, top = _flag(fields, "logprobs"), _integer(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    asked = replace(asked, logprobs=logprobs, top_logprobs=top or 0)
    messages = read_messages(fields.get("messages"))
    tools, may_call = read_tools(fields)
    if asked.json_schema and tools and may_call:
        problem = "response_format does not go with tools: what must be JSON of it is no call"
        advice = "leave one of them out, or set tool_choice to none"
        raise BadRequestError(f"{problem}; {advice}", "response_format")
    return replace(asked, messages=messages, tools=tools, may_call=may_call)


def read_completion(body: Any, sampling: SamplingConfig) -> CompletionRequest:
    """A request of /v1/completions, as `read_chat`."""
    fields = _fields(body, {*_COMMON, "prompt", "top_logprobs"})
    check_neutral(fields, {"top_logprobs": (0,)}, of=" here: logprobs has the number")
    asked = _common(fields, sampling, longest="max_tokens")
    top = _integer(fields, "logprobs", 0, MAX_TOP_LOGPROBS)
    given = fields.get("prompt")
    listed: list[Any] = given if isinstance(given, list) and given else [given]
    if not isinstance(listed[0], (str, list)):
        listed = [given]  # the numbers of one prompt, or none
    prompts = tuple(_prompt(each) for each in listed)
    if len(prompts) * asked.n > MOST_ANSWERS:
        problem = (
            f"{len(prompts)} prompts with n {asked.n} ask for more than {MOST_ANSWERS} answers"
        )
        raise BadRequestError(f"{problem}; send several requests", "prompt")
    return replace(asked, prompts=prompts, logprobs=top is not None, top_logprobs=top or 0)


def _prompt(given: Any) -> str | tuple[int, ...]:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and set(map(type, given)) == {int}:
        return tuple(given)
    problem = "prompt must be a text or a list of token numbers, or a list of those, none empty"
    raise BadRequestError(problem, "prompt")


def _fields(body: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    for name, value in body.items():
        if value is not None and name not in {*known, *_WITHOUT_EFFECT, *_NEUTRAL}:
            raise BadRequestError(f"{name[:60]} is not supported; remove it", name[:60])
    check_neutral(body, _NEUTRAL)
    return {name: value for name, value in body.items() if value is not None}


def _common(fields: dict[str, Any], base: SamplingConfig, *, longest: str) -> CompletionRequest:
    model = fields.get("model")
    if not isinstance(model, str):
        raise BadRequestError("model must name the job's model; /v1/models lists it", "model")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict) or not set(options) <= _STREAM_OPTIONS:
        raise BadRequestError("stream_options may have include_usage alone", "stream_options")
    check_neutral(options, {"include_obfuscation": (False,)}, of=" in stream_options")
    seed = _integer(fields, "seed", -_MAX_SEED, _MAX_SEED - 1)
    return CompletionRequest(
        model,
        _sampling(fields, base, longest),
        n=_integer(fields, "n", 1, MOST_CHOICES) or 1,
        seed=secrets.randbelow(_MAX_SEED) if seed is None else seed % _MAX_SEED,
        stream=_flag(fields, "stream"),
        names_length=bool({longest, "max_tokens"} & fields.keys()),
        include_usage=_flag(options, "include_usage"),
        json_schema=read_response_format(fields),
        return_token_ids=_flag(fields, "return_token_ids"),
        tokens_by_number=_flag(fields, "return_tokens_as_token_ids"),
    )


def _sampling(fields: dict[str, Any], base: SamplingConfig, longest: str) -> SamplingConfig:
    longest = longest if longest in fields else "max_tokens"
    top_k = _integer(fields, "top_k", -1, 2**31)
    asked: dict[str, tuple[str, Any]] = {  # by the field of SamplingConfig
        "max_tokens": (longest, _integer(fields, longest, 1, 2**31)),
        "temperature": ("temperature", _number(fields, "temperature")),
        "top_p": ("top_p", _number(fields, "top_p")),
        "top_k": ("top_k", None if top_k is None else max(0, top_k)),
        "stop": ("stop", _stop(fields)),
    }
    temperature = asked["temperature"][1]
    if temperature is not None and 0 <= temperature < MIN_TEMPERATURE:
        asked |= {"temperature": ("", None), "top_p": ("top_p", 1.0), "top_k": ("top_k", 1)}
    sampling = replace(base, column="")
    for name, (field, value) in asked.items():
        try:
            sampling = sampling if value is None else replace(sampling, **{name: value})
        except ValueError as error:
            raise BadRequestError(str(error), field) from error
    return sampling


def _stop(fields: Mapping[str, Any]) -> tuple[str, ...] | None:
    stop = fields.get("stop")
    if isinstance(stop, str):
        return (stop,)
    if stop is not None and (not isinstance(stop, list) or {type(text) for text in stop} - {str}):
        raise BadRequestError("stop must be a string or a list of strings", "stop")
    return None if stop is None else tuple(stop)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise BadRequestError(f"{name} must be true or false", name)
    return bool(value)


def _integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise BadRequestError(f"{name} must be a whole number from {low} to {high}", name)
    return value


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
        raise BadRequestError(f"{name} must be a number", name)
    return float(value)
