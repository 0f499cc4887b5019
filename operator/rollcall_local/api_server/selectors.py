"""Label and field selectors.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

import re
from collections.abc import Callable
from typing import Any

from rollcall_local.api_server.errors import MalformedRequestError

Object = dict[str, Any]
Matches = Callable[[Object], bool]

_NAME = r"(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)"
_SET = re.compile(_NAME + r"\s+(?P<how>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALS = re.compile(_NAME + r"\s*(?P<how>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)")
_FIELD = re.compile(_NAME + r"\s*(?P<how>==|=|!=)\s*(?P<value>[^=!]*)")
_KEY = re.compile(r"(?P<absent>!?)\s*" + _NAME)
_COMMA = re.compile(r",(?![^(]*\))")  # outside of parentheses


def by_labels(selector: str) -> Matches:
    """What a labelSelector selects; MalformedRequestError if it cannot be read."""
    parts = [_label_requirement(text.strip()) for text in _COMMA.split(selector) if selector]
    return lambda found: all(part(found["metadata"].get("labels") or {}) for part in parts)


def by_fields(selector: str) -> Matches:
    """What a fieldSelector of `=`, `==` and `!=` selects; MalformedRequestError."""
    parts = []
    for text in filter(None, selector.split(",")):
        found = _FIELD.fullmatch(text.strip())
        if found is None:
            raise MalformedRequestError(f"fieldSelector: {text!r} is not KEY=VALUE or KEY!=VALUE")
        parts.append((found["key"].split("."), found["value"], found["how"] != "!="))
    return lambda body: all((_at(body, path) == value) is wanted for path, value, wanted in parts)


def _label_requirement(text: str) -> Callable[[Object], bool]:
    if found := _SET.fullmatch(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        wanted = found["how"] == "in"
        return lambda labels: (labels.get(key) in values) is wanted
    if found := _EQUALS.fullmatch(text):
        key, value, wanted = found["key"], found["value"], found["how"] != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    if found := _KEY.fullmatch(text):
        key, wanted = found["key"], not found["absent"]
        return lambda labels: (key in labels) is wanted
    raise MalformedRequestError(
        f"labelSelector: {text!r} is none of KEY=VALUE, KEY!=VALUE, KEY in (A, B), "
        "KEY notin (A, B), KEY and !KEY"
    )


def _at(body: Any, path: list[str]) -> str:
    """The value at a path as text; empty if there is none."""
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return "" if body is None else str(body)
