"""OpenAI's Responses in the form of chats: what is asked, and what is answered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.neutral_settings import check_neutral
from rollcall_plugins.front.openai.openai_requests import CompletionRequest, read_chat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_protocol.sampling_config import SamplingConfig

# Of settings that chats do not have, the values that say what happens anyway.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([],),
    "logprobs": (False,),
    "messages": (),
    "n": (1,),
    "reasoning": ({},),
    "response_format": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_OWN = {"input", "instructions", "max_output_tokens", "text", "tools"}


def read_response(body: Any, sampling: SamplingConfig) -> CompletionRequest:
    """A request of /v1/responses, as `read_chat`. Nothing is kept: `store` has no effect."""
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    check_neutral(body, _NEUTRAL, of=" with /v1/responses")
    chat = {name: value for name, value in body.items() if name not in {*_OWN, *_NEUTRAL}}
    tools = body.get("tools")
    chat |= {
        "max_completion_tokens": body.get("max_output_tokens"),
        "messages": _messages(body),
        "response_format": _response_format(body.get("text")),
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else tools,
    }
    return replace(read_chat(chat, sampling), include_usage=True)


def response_body(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer of a chat with one choice as a Response."""
    (choice,) = chat["choices"]
    message, name = choice["message"], chat["id"].partition("-")[2]
    calls = message.get("tool_calls") or []
    output: list[dict[str, Any]] = []
    if message["content"] or not calls:
        text = {"type": "output_text", "text": message["content"], "annotations": []}
        own = {"type": "message", "id": f"msg_{name}", "role": "assistant"}
        output.append({**own, "status": "completed", "content": [text]})
    for call in calls:
        asked = {"call_id": call["id"], **call["function"], "status": "completed"}
        output.append({"type": "function_call", "id": f"fc_{call['id']}", **asked})
    cut = choice["finish_reason"] == "length"
    return {
        **response_head(chat),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": _usage(chat["usage"]),
    }


def response_head(chat: Mapping[str, Any]) -> dict[str, Any]:
    """What a Response says before anything is sampled. `chat`: a chat's answer, or a piece."""
    return {
        "id": f"resp_{chat['id'].partition('-')[2]}",
        "object": "response",
        "created_at": chat["created"],
        "model": chat["model"],
        "status": "in_progress",
        "incomplete_details": None,
        "error": None,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _response_format(text: Any) -> Any:
    """The format of `text` as chats have it: the schema stands in an object of its own."""
    if not isinstance(text, dict | None):
        raise BadRequestError("text must be an object", "text")
    known = {**(text or {})}
    form = known.pop("format", None)
    check_neutral(known, {**dict.fromkeys(known, ()), "verbosity": ("medium",)}, of=" in text")
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


def _tool(tool: Any) -> Any:
    """Its fields stand in a `function` of their own in a chat."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given, instructions = body.get("input"), body.get("instructions")
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise BadRequestError("input must be a text or a list of items, not empty", "input")
    for at, item in enumerate(given):
        _add(messages, item, f"input[{at}]")
    return messages


def _add(messages: list[dict[str, Any]], item: Any, place: str) -> None:
    """The message that an item is; a call belongs to the assistant's message before it."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        own = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": own}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        own = {"role": "tool", "tool_call_id": item.get("call_id")}
        messages.append({**own, "content": item.get("output")})
    else:
        known = "message, function_call and function_call_output"
        raise BadRequestError(f"{place} must have one of the types {known}", place)
