"""The tokens of a request's prompt, and whether the model can take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_plugins.front.openai.openai_requests import BadRequestError
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_plugins.front.openai.openai_requests import CompletionRequest
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.models.tokenizer import ModelTokenizer


class PromptReader:
    """Makes tokens of prompts. Without a `tokenizer` a prompt must be tokens already.

    Rollouts take at most `rollout_context` tokens (0: as many as the model).
    """

    def __init__(
        self, source: ModelSource, tokenizer: ModelTokenizer | None, *, rollout_context: int = 0
    ) -> None:
        self.source, self.tokenizer = source, tokenizer
        self.positions = min(filter(None, (source.positions, rollout_context)), default=None)
        """Tokens of a prompt and its response; None: any number."""
        self.bounds = SampleBounds(source.vocabulary, self.positions)

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end a response."""
        return self.source.named_eos if self.tokenizer is None else self.tokenizer.eos

    def prompts(self, asked: CompletionRequest) -> tuple[str | tuple[int, ...], ...]:
        """What the model reads, as texts or tokens. BadRequestError."""
        if self.tokenizer is None and (
            asked.chat or any(isinstance(p, str) for p in asked.prompts)
        ):
            problem = "the job's model has no tokenizer: send /v1/completions a list of tokens"
            raise BadRequestError(problem, asked.prompt_field)
        return asked.prompts if asked.messages is None else (self._chat_text(asked.messages),)

    def _chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        assert self.tokenizer is not None  # noqa: S101 - `prompts` has looked
        try:
            return self.tokenizer.chat_text(messages)
        except SpecError as error:
            raise BadRequestError(error.problem, "messages") from error
        except ValueError as error:
            raise BadRequestError(str(error), "messages") from error

    def encode(self, text: str, field: str, *, begins: bool) -> tuple[int, ...]:
        """The tokens of a text of `field`: with those that the tokenizer adds where it `begins`.

        A chat's template writes them itself. BadRequestError if it is no Unicode.
        """
        assert self.tokenizer is not None  # noqa: S101 - `prompts` gave one
        try:
            made = self.tokenizer.prompt_tokens if begins else self.tokenizer.encode
            return tuple(made(text))
        except ValueError as error:
            raise BadRequestError(f"{field}: {error}", field) from error

    def decode(self, tokens: Sequence[int]) -> str:
        """What tokens say, special ones too; nothing without a tokenizer."""
        return self.tokenizer.decode(tokens, special=True) if self.tokenizer else ""

    def check(self, asked: CompletionRequest, prompt: tuple[int, ...]) -> None:
        """BadRequestError if the model cannot take the prompt with the response asked for."""
        field = asked.prompt_field
        if self.tokenizer is None and asked.sampling.stop:
            raise BadRequestError("stop needs a tokenizer, which the job's model lacks", "stop")
        bad = self.bounds.check_request(prompt, Response())
        if bad is not None:
            raise BadRequestError(bad.problem, field)
        # Where a request names no length its response gets what room there is.
        length = asked.sampling.max_tokens if asked.names_length else 1
        if self.positions is not None and len(prompt) + length > self.positions:
            problem = (
                f"the model has {self.positions} positions; the prompt has {len(prompt)} tokens, "
                f"and {length} more are asked for"
            )
            raise BadRequestError(problem, field, "context_length_exceeded")

    def finish_reason(self, asked: CompletionRequest, response: Response, *, stopped: bool) -> str:
        """Why a response ended: `stop`, or `length`."""
        last = response.tokens[-1] if response.tokens else None
        if stopped or last in self.eos or last in asked.sampling.stop_token_ids:
            return "stop"
        return "length"
