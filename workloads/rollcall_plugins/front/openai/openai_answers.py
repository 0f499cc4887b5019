"""Answers in the form of OpenAI's API: whole, as pieces of a stream, and errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is the same in all pieces of an answer. `created` is in Unix seconds."""

    name: str
    model: str
    created: int
    chat: bool

    def body(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """A whole answer, as OpenAI's JSON, of these choices and token counts."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._fields(kind), "choices": list(choices), "usage": usage}

    def piece(
        self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """A piece of a stream."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        body = {**self._fields(kind), "choices": list(choices)}
        return body if usage is None else {**body, "usage": usage}

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self.created, "model": self.model}


def choice(
    head: AnswerHead,
    index: int,
    text: str,
    *,
    whole: bool,
    first: bool = True,
    finish: str | None,
    logprobs: dict[str, Any] | None,
    tokens: Sequence[int] | None,
    calls: Sequence[Mapping[str, Any]] = (),
    prompt: Sequence[int] | None = None,
    versions: Sequence[int] | None = None,
) -> dict[str, Any]:
    """One of an answer's choices, `whole` or a piece: the `first` one, or the last with `calls`.

    `tokens` and `prompt` are there if asked for.
    `versions` are those of the weights that sampled all tokens of the choice, not OpenAI's field.
    """
    body: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish}
    if not head.chat:
        body["text"] = text
    elif whole:
        message = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        body["message"] = {**message, "tool_calls": list(calls)} if calls else message
    else:
        # Clients join the roles of all pieces.
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        delta |= {"content": text or (None if calls else "")}
        numbered = [{"index": at, **call} for at, call in enumerate(calls)]
        body["delta"] = {**delta, "tool_calls": numbered} if calls else delta
    if tokens is not None:
        body["token_ids"] = list(tokens)
    if prompt is not None:
        body["prompt_token_ids"] = list(prompt)
    if versions is not None:
        body["weight_versions"] = list(versions)
    return body


def usage(prompt: int, sampled: int) -> dict[str, int]:
    """The numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def logprobs_of(
    head: AnswerHead,
    texts: Sequence[str],
    values: Sequence[float],
    top: Sequence[Sequence[tuple[str, float]]],
    *,
    offset: int,
) -> dict[str, Any]:
    """The log-probabilities of tokens whose own texts are `texts`, the first one at `offset`.

    `top`: the likeliest texts in the place of each, or nothing at all.
    """
    tops = top or [()] * len(texts)
    if head.chat:
        content = [
            {**_entry(text, value), "top_logprobs": [_entry(*pair) for pair in pairs]}
            for text, value, pairs in zip(texts, values, tops, strict=True)
        ]
        return {"content": content, "refusal": None}
    offsets, at = [], offset
    for text in texts:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": list(texts),
        "token_logprobs": list(values),
        "top_logprobs": [_by_text(*one) for one in zip(texts, values, tops, strict=True)],
        "text_offset": offsets,
    }


def _by_text(text: str, value: float, pairs: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Of several tokens with one text the likeliest counts, and the sampled one before all."""
    likeliest = dict(reversed(pairs))
    return {**{each: likeliest[each] for each, _ in pairs}, text: value}


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode())}


def error_body(
    message: str, *, kind: str, field: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
