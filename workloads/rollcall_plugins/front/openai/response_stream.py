"""OpenAI's Responses as a stream: the pieces of a chat become their events."""

from __future__ import annotations

from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any

from rollcall_plugins.front.openai.responses import response_body, response_head

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping


async def response_events(
    pieces: AsyncGenerator[dict[str, Any], None],
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a Response, numbered, of a chat with one choice whose last piece has `usage`.

    Text goes out as it comes; calls, which the chat has in its last piece, whole.
    """
    stream, numbers = _Stream(), count()
    async with aclosing(pieces):
        async for piece in pieces:
            for event in stream.after(piece):
                yield {**event, "sequence_number": next(numbers)}


class _Stream:
    """What came so far: `text` of the message, and the chat's last piece with a choice."""

    def __init__(self) -> None:
        self._text = ""
        self._last: Mapping[str, Any] | None = None

    def after(self, piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if self._last is None:
            head = response_head(piece)
            yield {"type": "response.created", "response": head}
            yield {"type": "response.in_progress", "response": head}
        if piece["choices"]:
            self._last = piece
            new = piece["choices"][0]["delta"]["content"] or ""
            if new and not self._text:
                yield from _message_begun(self._place(piece))
            self._text += new
            if new:
                place = {**self._place(piece), "content_index": 0}
                yield {"type": "response.output_text.delta", **place, "delta": new, "logprobs": []}
        if piece.get("usage") is not None:
            yield from self._ended(piece)

    def _place(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        return {"item_id": f"msg_{piece['id'].partition('-')[2]}", "output_index": 0}

    def _ended(self, piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        assert self._last is not None  # noqa: S101 - a choice has come before the usage
        (choice,) = self._last["choices"]
        calls = [
            {name: value for name, value in call.items() if name != "index"}
            for call in choice["delta"].get("tool_calls") or ()
        ]
        message = {"content": (self._text or None) if calls else self._text, "tool_calls": calls}
        whole = response_body({**piece, "choices": [{**choice, "message": message}]})
        for at, item in enumerate(whole["output"]):
            if item["type"] == "message":
                if not self._text:
                    yield from _message_begun(self._place(piece))
                yield from _message_ended(item, self._place(piece))
            else:
                yield from _call(item, at)
        yield {"type": f"response.{whole['status']}", "response": whole}


def _message_begun(place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    own = {"type": "message", "id": place["item_id"], "role": "assistant", "content": []}
    item = {**own, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    part = {"type": "output_text", "text": "", "annotations": []}
    yield {"type": "response.content_part.added", **place, "content_index": 0, "part": part}


def _message_ended(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    at = {**place, "content_index": 0}
    text = {"text": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **at, **text}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}


def _call(item: Mapping[str, Any], at: int) -> Iterator[dict[str, Any]]:
    begun = {**item, "arguments": "", "status": "in_progress"}
    place = {"item_id": item["id"], "output_index": at}
    written = item["arguments"]
    yield {"type": "response.output_item.added", "output_index": at, "item": begun}
    yield {"type": "response.function_call_arguments.delta", **place, "delta": written}
    done = {"name": item["name"], "arguments": written}
    yield {"type": "response.function_call_arguments.done", **place, **done}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}
