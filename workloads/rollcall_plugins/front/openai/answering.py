"""Answers one request: its choices side by side, as their tokens come, or when all are there."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall_plugins.front.openai.openai_answers import AnswerHead, choice, logprobs_of, usage
from rollcall_plugins.front.openai.text_stream import TextStream
from rollcall_protocol.wire.generation import GenerationRequest
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.worker.asyncio_helpers import cancel_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from rollcall_plugins.front.openai.admission import Place
    from rollcall_plugins.front.openai.openai_requests import CompletionRequest
    from rollcall_plugins.front.openai.prompts import PromptReader
    from rollcall_plugins.front.openai.tool_calls import ToolCall, ToolCallText
    from rollcall_protocol.wire.ids import Version
    from rollcall_runtime.generation.continued_generation import GeneratedSoFar, Generation

_CHOICE_SEEDS = 0x9E3779B97F4A7C15  # between those of two choices of a request


@dataclass(slots=True)
class Choice:
    """One choice so far. `tools` takes the `calls` from its text. `texts` are those of its tokens,
    and `top` the likeliest texts in the place of each, if log-probabilities are asked for; `sent`
    tokens are in pieces that were given out.
    """

    index: int
    prompt: tuple[int, ...]
    text: TextStream | None
    tools: ToolCallText | None = None
    calls: tuple[ToolCall, ...] = ()
    written: str = ""
    response: Response = field(default_factory=Response)
    oldest: Version | None = None
    texts: list[str] = field(default_factory=list)
    top: list[tuple[tuple[str, float], ...]] = field(default_factory=list)
    finish: str | None = None
    sent: int = 0


class Answer:
    """The answer to `asked`, whose prompts are the tokens `prompts`; each has its `n` choices.

    Each choice has a `place` while it is sampled.
    """

    def __init__(
        self,
        asked: CompletionRequest,
        prompts: Sequence[tuple[int, ...]],
        *,
        generation: Generation,
        reader: PromptReader,
        place: Place,
    ) -> None:
        self.asked, self._prompts = asked, prompts
        self._generation, self._reader, self._place = generation, reader, place
        kind = "chatcmpl" if asked.chat else "cmpl"
        name = f"{kind}-{uuid.uuid4().hex}"
        self.head = AnswerHead(name, asked.model, int(time.time()), asked.chat)
        each = [prompt for prompt in prompts for _ in range(asked.n)]
        self.choices = [
            Choice(at, prompt, self._text(), reader.call_text(asked, prompt))
            for at, prompt in enumerate(each)
        ]

    @property
    def finished(self) -> bool:
        """Whether all choices are whole."""
        return all(one.finish is not None for one in self.choices)

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is no stream."""
        async with aclosing(self._all()) as pieces:
            async for _ in pieces:
                pass
        found = [self._choice(one, one.written, 0, whole=True) for one in self.choices]
        return self.head.body(found, self._usage())

    async def pieces(self) -> AsyncGenerator[dict[str, Any], None]:
        """The bodies of a stream's events."""
        async with aclosing(self._all()) as pieces:
            async for one, text, since in pieces:
                yield self.head.piece([self._choice(one, text, since, whole=False)])
        if self.asked.include_usage:
            yield self.head.piece([], self._usage())

    # --- inside --------------------------------------------------------------------------------

    def _text(self) -> TextStream | None:
        tokenizer, parser = self._reader.tokenizer, self._reader.tool_parser
        if tokenizer is None:
            return None
        kept = parser.kept if parser is not None and self.asked.tools else None
        return TextStream(tokenizer, self.asked.sampling.stop, kept)

    async def _all(self) -> AsyncGenerator[tuple[Choice, str, int], None]:
        """Each piece of each choice: its new text, and the number of its first new token."""
        if len(self.choices) == 1:
            async with aclosing(self._follow(self.choices[0])) as pieces:
                async for piece in pieces:
                    yield piece
            return
        queue: asyncio.Queue[tuple[Choice, str, int] | Exception | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._forward(one, queue)) for one in self.choices]
        try:
            for _ in self.choices:
                while (given := await queue.get()) is not None:
                    if isinstance(given, Exception):
                        raise given
                    yield given
        finally:
            await cancel_all(tasks)

    async def _forward(
        self, one: Choice, queue: asyncio.Queue[tuple[Choice, str, int] | Exception | None]
    ) -> None:
        """Put the pieces of a choice into `queue`, then None or what went wrong."""
        try:
            async with aclosing(self._follow(one)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:  # noqa: BLE001 - raised where the pieces are read
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    async def _follow(self, one: Choice) -> AsyncGenerator[tuple[Choice, str, int], None]:
        seed = (self.asked.seed + one.index * _CHOICE_SEEDS) % 2**63
        request = GenerationRequest(
            one.prompt,
            self.asked.sampling,
            seed,
            json_schema=self.asked.json_schema,
            top_logprobs=self.asked.top_logprobs,
        )
        async with self._place(), aclosing(self._generation.generate(request)) as pieces:
            async for piece in pieces:
                text = self._take(one, piece)
                # Tokens without a text of their own go out with the next ones.
                if one.finish is not None or text or one.text is None:
                    since, one.sent = one.sent, len(one.response.tokens)
                    yield one, text, since
                if one.finish is not None and not piece.response.finished:
                    return  # a stop string ended it here; the rollout's stream is closed

    def _take(self, one: Choice, piece: GeneratedSoFar) -> str:
        """The text that a piece adds. A stop string that the rollout passed over ends it here."""
        new = piece.response.tokens[len(one.response.tokens) :]
        one.response, one.oldest = piece.response, piece.oldest
        text = self._plain(one, one.text.add(new) if one.text else "")
        if self.asked.logprobs:
            one.texts += [self._text_of(token) for token in new]
            one.top += [tuple((self._text_of(t), v) for t, v in pairs) for pairs in piece.top]
        stopped = one.text is not None and one.text.stopped
        if piece.response.finished or stopped:
            text += self._plain(one, one.text.rest() if one.text else "")
            response = one.response
            one.finish = self._reader.finish_reason(self.asked, response, stopped=stopped)
            if one.tools is not None:
                behind, one.calls = one.tools.end()
                text += behind
                one.finish = "tool_calls" if one.calls else one.finish
        one.written += text
        return text

    def _plain(self, one: Choice, text: str) -> str:
        return text if one.tools is None else one.tools.add(text)

    def _text_of(self, token: int) -> str:
        tokenizer = self._reader.tokenizer
        if tokenizer is None or self.asked.tokens_by_number:
            return f"token_id:{token}"
        return tokenizer.decode([token], special=True)

    def _choice(self, one: Choice, text: str, since: int, *, whole: bool) -> dict[str, Any]:
        logprobs = None
        if self.asked.logprobs:
            offset = 0 if whole else len(one.written) - len(text)
            texts, values = one.texts[since:], one.response.logprobs[since:]
            logprobs = logprobs_of(self.head, texts, values, one.top[since:], offset=offset)
        ids = self.asked.return_token_ids or one.text is None
        return choice(
            self.head,
            one.index,
            text,
            whole=whole,
            first=since == 0,
            finish=one.finish,
            calls=[call.body() for call in one.calls],
            logprobs=logprobs,
            tokens=one.response.tokens[since:] if ids else None,
            prompt=one.prompt if self.asked.return_token_ids and since == 0 else None,
            # A rollout is sure of them with the last token only.
            versions=one.response.versions if ids and one.finish is not None else None,
        )

    def _usage(self) -> dict[str, int]:
        sampled = sum(len(one.response.tokens) for one in self.choices)
        return usage(sum(map(len, self._prompts)), sampled)
