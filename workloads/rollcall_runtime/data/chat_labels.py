"""Which tokens of a chat the assistant wrote, so that a model learns to write them."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from rollcall_runtime.data.token_places import token_places
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_runtime.data.model_input import Message, ModelInput
    from rollcall_runtime.data.tools import Tools
    from rollcall_runtime.models.tokenizer import ModelTokenizer

_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


def label_chat(
    messages: Sequence[Message],
    *,
    model: ModelInput,
    first: int = 0,
    tools: Tools | None = None,
    place: str,
    field: str,
) -> tuple[list[int], list[bool]]:
    """The chat's tokens, and which of them the assistant writes in `messages[first:]`; `tools` are
    what it may call.

    A template that marks what is generated (`{% generation %}`) decides. Without marks a turn
    begins where the chat before it ends when the template opens an answer, and ends with the first
    token that ends a response, or where the chat ends if it is cut after the turn. A turn that the
    template writes in another way once the chat goes on (Qwen3 leaves out earlier thinking) is read
    and not learnt: the model would not have written it so.

    A message with `weight` 0 is read and not learnt, as OpenAI's fine-tuning has it; such a chat
    needs a template without marks. SpecError at `field` if there is nothing to learn.
    """
    unlearnt = _of_no_weight(messages, place=place, field=field)

    def text(count: int, *, answer_follows: bool) -> str:
        return model.chat_text(
            messages[:count],
            answer_follows=answer_follows,
            tools=tools,
            place=place,
            field=field,
        )

    whole = text(len(messages), answer_follows=False)
    if _MARK.search(str(model.tokenizer.library.chat_template)):
        if unlearnt:
            problem = f"{place}: the chat template marks what is learnt, and a message has weight 0"
            raise SpecError(field, f"{problem}; end the chat before it, or take the marks out")
        tokens, learnt = _marked(messages, tools, model.tokenizer)
        opening = text(first, answer_follows=True) if first else ""
        read = len(model.tokenizer.encode(opening))
        learnt = [mark and position >= read for position, mark in enumerate(learnt)]
    else:
        turns = [
            n
            for n in range(max(first, 1), len(messages))  # a greeting answers nothing
            if messages[n]["role"] == "assistant" and n not in unlearnt
        ]
        edges = [(text(n, answer_follows=True), text(n + 1, answer_follows=False)) for n in turns]
        spans = [
            (len(before), len(through))
            for before, through in edges
            if whole.startswith(before) and whole.startswith(through)
        ]
        tokens, learnt = _in_spans(whole, spans, model.tokenizer)
    if not any(learnt):
        problem = (
            f"{place}: there is no turn of the assistant to learn, as the chat template has it"
        )
        raise SpecError(field, f"{problem}; or mark it by {{% generation %}} in the template")
    return tokens, learnt


def _of_no_weight(messages: Sequence[Message], *, place: str, field: str) -> set[int]:
    """The numbers of the assistant's messages with `weight` 0; SpecError for one but 0 and 1."""
    weights = {n: m.get("weight", 1) for n, m in enumerate(messages) if m["role"] == "assistant"}
    for weight in weights.values():
        if weight not in (0, 1):
            problem = f"{place}: a message has the weight {weight!r:.60}"
            raise SpecError(field, f"{problem}; write 0 for one that is not learnt, or 1")
    return {n for n, weight in weights.items() if not weight}


def _marked(
    messages: Sequence[Message], tools: Tools | None, tokenizer: ModelTokenizer
) -> tuple[list[int], list[bool]]:
    text, spans = tokenizer.marked_chat(messages, tools)
    encoded = tokenizer.library(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = list(encoded["input_ids"])
    starts, ends = token_places(encoded["offset_mapping"])
    learnt = [False] * len(tokens)
    for begin, end in spans:
        if begin < end:
            for position in range(bisect_right(ends, begin), bisect_left(starts, end)):
                learnt[position] = True
    return tokens, learnt


def _in_spans(
    text: str, spans: Sequence[tuple[int, int]], tokenizer: ModelTokenizer
) -> tuple[list[int], list[bool]]:
    """Tokens that begin in one of the spans of characters, up to its first end of a response."""
    encoded = tokenizer.library(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = list(encoded["input_ids"])
    starts, _ = token_places(encoded["offset_mapping"])
    learnt = [False] * len(tokens)
    for begin, end in spans:
        for position in range(bisect_left(starts, begin), bisect_left(starts, end)):
            learnt[position] = True
            if tokens[position] in tokenizer.eos:
                break
    return tokens, learnt
