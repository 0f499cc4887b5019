"""The messages and tools of a chat, as chat templates read them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollcall_plugins.front.openai.bad_request import BadRequestError

MOST_MESSAGES = 4096
MOST_TOOLS = 512
MOST_CALLS = 512  # of a message
_TEXTS: Mapping[str, Sequence[str]] = {  # what templates read beside the content, by the role
    "assistant": ("reasoning_content",),
    "tool": ("name", "tool_call_id"),
}


def read_messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    """Messages with role and content, and calls of tools with their results. BadRequestError.

    Arguments, which come as JSON, become objects: templates write them by themselves.
    """
    if not isinstance(value, list) or not value or len(value) > MOST_MESSAGES:
        problem = f"messages must be a list of 1 to {MOST_MESSAGES} messages"
        raise BadRequestError(problem, "messages")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(value))


def read_tools(fields: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """The tools of a request, and whether the model may call them. BadRequestError."""
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise BadRequestError(f"tools must be a list of at most {MOST_TOOLS} tools", "tools")
    chosen = fields.get("tool_choice", "auto")
    if chosen not in ("auto", "none"):
        problem = "tool_choice must be auto or none: a call cannot be forced"
        raise BadRequestError(problem, "tool_choice")
    return tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)), chosen == "auto"


def _tool(value: Any, place: str) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or value.get("type") != "function":
        problem = f"{place} must have the type function, and a function; others are not supported"
        raise BadRequestError(problem, "tools")
    name, described = function.get("name"), function.get("description")
    parameters = function.get("parameters")
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"{place}.function.name must be a text", "tools")
    if not isinstance(described, str | None) or not isinstance(parameters, dict | None):
        problem = "needs a text as description, and an object as parameters"
        raise BadRequestError(f"{place}.function {problem}", "tools")
    # Templates write what is there; `strict` is for who checks arguments.
    own = {"name": name, "description": described or ""}
    schema = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**own, "parameters": schema}}


def _message(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise BadRequestError(f"{place} must be an object with role and content", place)
    role = "system" if value["role"] == "developer" else value["role"]
    calls = value.get("tool_calls") or []
    if calls and role != "assistant":
        raise BadRequestError(f"{place}.tool_calls may be in an assistant's message alone", place)
    if value.get("function_call") is not None:
        raise BadRequestError(f"{place}.function_call is not supported; use tool_calls", place)
    content = _content(value.get("content"), place, empty=role == "assistant")
    message: dict[str, Any] = {"role": role, "content": content}
    if calls:
        message["tool_calls"] = _calls(calls, place)
    for name in _TEXTS.get(role, ("name",)):
        if value.get(name) is not None:
            if not _text(value, name):
                raise BadRequestError(f"{place}.{name} must be text", place)
            message[name] = value[name]
    return message


def _text(value: Mapping[str, Any], name: str) -> bool:
    return isinstance(value.get(name), str)


def _content(content: Any, place: str, *, empty: bool) -> str:
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
        ):
            raise BadRequestError(f"{place}.content may have parts of text alone", place)
        content = "".join(part["text"] for part in content)
    if content is None and empty:
        return ""
    if not isinstance(content, str):
        raise BadRequestError(f"{place}.content must be text", place)
    return content


def _calls(calls: Any, place: str) -> list[Mapping[str, Any]]:
    if not isinstance(calls, list) or len(calls) > MOST_CALLS:
        problem = f"{place}.tool_calls must be a list of at most {MOST_CALLS} calls"
        raise BadRequestError(problem, place)
    return [_call(call, f"{place}.tool_calls[{at}]", place) for at, call in enumerate(calls)]


def _call(call: Any, where: str, place: str) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not _text(function, "name") or not _text(call, "id"):
        raise BadRequestError(f"{where} must have an id, and a function with its name", place)
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        problem = f"{where}.function.arguments must be a JSON object, written as text"
        raise BadRequestError(problem, place)
    own = {"name": function["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": own}
