"""What a column holds for a model: text, a chat, or tokens."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollcall_runtime.models.chat_template import ROLES, foreign_role
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_runtime.data.model_input import Message, ModelInput

MESSAGES = "messages"
PROMPT_COLUMNS = (MESSAGES, "prompt", "tokens")


class RowKind(StrEnum):
    """TEXT is encoded by the tokenizer, CHAT goes through its chat template, TOKENS are numbers."""

    TEXT = "text"
    CHAT = "chat"
    TOKENS = "tokens"


_CHAT_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](role|content|from|value)["']\s*:""")
"""As programs write a list of messages into a CSV file: JSON, or what Python prints."""

_WANTED = (
    'text, a chat such as [{"role": "user", "content": "..."}], or a list of token numbers '
    "from 0 on"
)


def find_column(columns: Sequence[str], wanted: str, *, place: str, field: str) -> str:
    """The column of the prompt: `wanted`, or the one of PROMPT_COLUMNS; SpecError at `field`."""
    if wanted:
        if wanted not in columns:
            problem = f"{place}: there is no column {wanted!r}; there are {_listed(columns)}"
            raise SpecError(field, problem)
        return wanted
    found = [name for name in PROMPT_COLUMNS if name in columns]
    if not found:
        problem = (
            f"{place}: wants a column {', '.join(PROMPT_COLUMNS[:-1])} or {PROMPT_COLUMNS[-1]}"
        )
        raise SpecError(field, f"{problem}; there are {_listed(columns)}; or name one by `column`")
    if len(found) > 1:
        problem = f"{place}: {' and '.join(found)} could all be the prompt"
        raise SpecError(field, f"{problem}; name the one to use by `column`")
    return found[0]


def kind_of(value: Any, *, place: str, field: str) -> RowKind:
    """The kind of a column's value; SpecError at `field` if it is none of them, or empty."""
    if isinstance(value, str) and value:
        if _CHAT_AS_TEXT.match(value):
            problem = f"{place}: holds a chat as text"
            raise SpecError(field, f"{problem}; give a list of messages, as in .jsonl or .parquet")
        return RowKind.TEXT
    if isinstance(value, list) and value:
        if set(map(type, value)) == {int} and min(value) >= 0:
            return RowKind.TOKENS
        if all(_is_message(item) for item in value):
            return RowKind.CHAT
    if isinstance(value, list) and any(map(_has_parts, value)):
        problem = f"{place}: holds a message whose content is a list of parts"
        raise SpecError(field, f"{problem}; write its text as content, the model reads text alone")
    given = "nothing" if value is None or value in ("", []) else f"{value!r:.60}"
    raise SpecError(field, f"{place}: holds {given}; wants {_WANTED}")


def check_roles(messages: Sequence[Message], *, model: ModelInput, place: str, field: str) -> None:
    """SpecError at `field` for a role that the chat template does not know."""
    role = foreign_role(messages, str(model.tokenizer.library.chat_template))
    if role is not None:
        problem = f"{place}: the chat template knows no role {role!r:.60}"
        raise SpecError(field, f"{problem}; write {', '.join(ROLES[:-1])} or {ROLES[-1]}")


def check_template(messages: Sequence[Message], *, model: ModelInput, place: str) -> None:
    """SpecError if the chat template leaves out what the messages say, as that of no chat does."""
    said = [m for m in messages if m["role"] == "user" and isinstance(m.get("content"), str)]
    others = [{**m, "content": f"{m['content']}?"} if m in said else m for m in messages]
    try:
        texts = {
            model.chat_text(each, answer_follows=False, place=place, field=FIELD)
            for each in (messages, others)
        }
    except SpecError:  # is said for what it is where the chat is read
        return
    if said and len(texts) == 1:
        problem = f"the chat template writes the same whatever the user says, as in {place}"
        raise SpecError(FIELD, f"{problem}; correct chat_template.jinja beside the model")


def size_of(value: Any, kind: RowKind) -> int:
    """About how long a value is: tokens, or characters."""
    if kind is RowKind.CHAT:
        return sum(len(message.get("content") or "") for message in value)
    return len(value)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    return isinstance(content, str) or (content is None and bool(value.get("tool_calls")))


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), list)


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(sorted(columns)) or "none"
