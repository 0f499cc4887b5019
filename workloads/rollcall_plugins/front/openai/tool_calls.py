"""Finds the calls of tools in what a model writes, by transformers' response templates."""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import transformers

from rollcall_protocol.front_config import HERMES, LLAMA3_JSON, QWEN3_CODER, TOOL_PARSERS
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.models.tokenizer import ModelTokenizer

# transformers 5.10 does not have it.
FINDS_CALLS = find_spec("transformers.utils.chat_parsing") is not None
if FINDS_CALLS:
    from transformers.utils.chat_parsing import parse_response
    from transformers.utils.chat_parsing.response_templates import load_response_template

log = logging.getLogger(__name__)

_CALLS = "tool_calls"
_THOUGHT = {"open": "<think>", "close": "</think>"}
_TEMPLATES: Mapping[str, Mapping[str, Any]] = {
    HERMES: {  # Qwen 2.5 and 3, too
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": _THOUGHT,
            _CALLS: {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {},
        },
    },
    QWEN3_CODER: {  # Qwen 3.5, too
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": _THOUGHT,
            _CALLS: {
                # The model leaves the outer tag out at times.
                "open_pattern": r"\s*(?:<tool_call>\s*)?<function=(?P<name>[^<>\s]+)>",
                "close_pattern": r"</function>(?:\s*</tool_call>)?",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    # What is no parameter has no key, which is an error.
                    "tag_pattern": r"<parameter=(?P<key>[^<>\s]+)>\n?(?P<value>.*?)\n?</parameter>"
                    r"|\S"
                },
                "transform": {
                    "type": "function",
                    "function": {"name": "{name}", "arguments": "{content}"},
                },
            },
            "content": {},
        },
    },
    LLAMA3_JSON: {  # the answer is one call, or several with ; between them
        "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "fields": {
            _CALLS: {
                "open_pattern": r'(?:\A\s*(?:<\|python_tag\|>\s*)?|;\s*)(?=\{\s*"name")',
                "close_pattern": r'(?<=\})\s*(?=;\s*\{\s*"name")',
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
                },
            },
            "content": {},
        },
    },
}
# What the chat template of a model that writes calls so has, without backslashes.
_SIGNS = {
    QWEN3_CODER: ("<tool_call>", "<function=", "<parameter="),
    HERMES: ("<tool_call>", '"arguments"'),
    LLAMA3_JSON: ('{"name": function name, "parameters":',),
}
_OTHERS = ("<function=", "<arg_key>")  # of templates with <tool_call> whose calls are no JSON


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wrote. `arguments` is a JSON object, as text."""

    name: str
    arguments: str
    id: str

    def body(self) -> dict[str, Any]:
        """It in OpenAI's form."""
        own = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": own}


class ToolParser:
    """Knows how one model writes calls, by a response template; ValueError if that has none.

    `kept` are the special tokens, by number, that the template needs to see.
    """

    def __init__(self, template: Mapping[str, Any], special: Mapping[int, str]) -> None:
        self.template = load_response_template(dict(template))
        fields = dict(self.template.fields)
        if _CALLS not in fields or fields[_CALLS].open_re is None:
            raise ValueError(f"it has no field {_CALLS} with a beginning")
        calls = fields.pop(_CALLS)
        self.opening = calls.open_re
        # What is cut off within tags can still be read, as fewer parameters.
        self._closing = calls.close_re if calls.content == "xml-inline" else None
        others = [field for field in fields.values() if field.open_re and field.close_re]
        self.others = [(field.open_re, field.close_re) for field in others]
        written = json.dumps(template, ensure_ascii=False)
        plain = written.replace("\\\\", "")  # of patterns, in which | is escaped
        self.kept = {token: text for token, text in special.items() if text in plain}

    def before(self, prompt: str) -> str:
        """What the prompt already says of the answer, such as the beginning of a thought."""
        found = list(self.template.start_anchor_re.finditer(prompt))
        return prompt[found[-1].end() :] if found else ""

    def calls(
        self, text: str, before: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[ToolCall, ...]:
        """The calls of a whole answer; none if one of them is no call of a tool in `tools`."""
        names = {tool["function"]["name"] for tool in tools}
        try:
            message = parse_response(
                text, self.template, prefix=before, tools=[dict(tool) for tool in tools]
            )
            found = tuple(_call(each, names) for each in message.get(_CALLS) or ())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return ()
        if self._closing is not None and len(self._closing.findall(text)) < len(found):
            return ()
        return found


class ToolCallText:
    """The text of one answer, from which calls are taken: what may be one is held back."""

    def __init__(self, parser: ToolParser, prompt: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self._parser, self._tools, self._before = parser, tools, parser.before(prompt)
        self._text, self._at = self._before, 0
        self._closing: Any = None  # of the thought that the text is in
        self._called = False
        self._scan(partial=False)
        self._at = len(self._before)

    def add(self, text: str) -> str:
        """What is certainly no call."""
        self._text += text
        since = self._at
        self._scan(partial=True)
        return self._plain(self._text[since : self._at])

    def end(self) -> tuple[str, tuple[ToolCall, ...]]:
        """The calls, or what was held back if it is none, now that no more comes."""
        since = self._at
        self._scan(partial=False)
        text, answer = self._text[since : self._at], self._text[len(self._before) :]
        calls = self._parser.calls(answer, self._before, self._tools) if self._called else ()
        return self._plain(text if calls else self._text[since:]), calls

    def _scan(self, *, partial: bool) -> None:
        """Move to the first call, or to the end of what can be none."""
        while not self._called:
            opening, others = self._parser.opening, self._parser.others
            watched = [self._closing] if self._closing else [opening, *(o for o, _ in others)]
            found = [one.search(self._text, self._at, partial=partial) for one in watched]
            first = min((m for m in found if m), key=lambda m: m.start(), default=None)
            if first is None or first.partial:
                self._at = len(self._text) if first is None else first.start()
                return
            self._called = first.re is opening
            self._at = first.start() if self._called else first.end()
            self._closing = None if self._closing else dict(others).get(first.re)

    def _plain(self, text: str) -> str:
        for special in self._parser.kept.values():
            text = text.replace(special, "")
        return text


def open_tool_parser(setting: str, tokenizer: ModelTokenizer | None) -> ToolParser | None:
    """The parser of `spec.front.toolParser`; None if the model's own is not known. SpecError."""
    if tokenizer is None:
        return None
    if not FINDS_CALLS:
        problem = f"transformers {transformers.__version__} finds no calls of tools; 5.19 does"
        if setting in _TEMPLATES:
            raise SpecError("spec.front.toolParser", f"{problem}: install it, or leave this out")
        log.warning("%s: requests with tools are refused", problem)
        return None
    library = tokenizer.library
    added = library.added_tokens_decoder
    special = {number: token.content for number, token in added.items() if token.special}
    if setting in _TEMPLATES:
        return ToolParser(_TEMPLATES[setting], special)
    own = getattr(library, "response_template", None)
    if own is not None:
        try:
            return ToolParser(own, special)
        except (ValueError, TypeError, AttributeError) as error:
            problem = f"the response_template of the tokenizer in '{tokenizer.directory}' is no use"
            advice = f"set spec.front.toolParser to one of {', '.join(TOOL_PARSERS)}"
            raise SpecError(FIELD, f"{problem}: {error}; {advice}") from error
    written = str(library.chat_template).replace("\\", "")
    found = next((n for n, signs in _SIGNS.items() if all(sign in written for sign in signs)), None)
    if found is None or (found == HERMES and any(other in written for other in _OTHERS)):
        return None
    return ToolParser(_TEMPLATES[found], special)


def _call(call: Any, names: set[str]) -> ToolCall:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name not in names or not isinstance(arguments, dict):
        raise ValueError("no call of a tool that there is")
    written = json.dumps(arguments, allow_nan=False)
    return ToolCall(name, written, f"call_{secrets.token_hex(12)}")
