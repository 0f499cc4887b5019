"""The tokens of a request's prompt, and whether the model can take them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rollcall_plugins.front.openai.bad_request import TOO_LONG, BadRequestError
from rollcall_plugins.front.openai.tool_calls import ToolCallText, ToolParser
from rollcall_protocol.front_config import TOOL_PARSERS
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS, SampleBounds
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.models.chat_template import foreign_role, leaves_out
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_plugins.front.openai.openai_requests import CompletionRequest
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.models.tokenizer import ModelTokenizer


_CALLS = "tool_calls"


class PromptReader:
    """Makes tokens of prompts. Without a `tokenizer` a prompt must be tokens already.

    Without `tool_parser` the model's calls of tools cannot be read. Rollouts take at most
    `rollout_context` tokens (0: as many as the model).
    """

    def __init__(
        self,
        source: ModelSource,
        tokenizer: ModelTokenizer | None,
        tool_parser: ToolParser | None = None,
        *,
        rollout_context: int = 0,
    ) -> None:
        self.source, self.tokenizer, self.tool_parser = source, tokenizer, tool_parser
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
        if asked.messages is None:
            return asked.prompts
        self._check_tools(asked)
        return (self.chat_text(asked.messages, asked.tools),)

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        answer_follows: bool = True,
    ) -> str:
        """As `ModelTokenizer.chat_text`. BadRequestError."""
        assert self.tokenizer is not None  # noqa: S101 - `prompts` has looked
        template = str(self.tokenizer.library.chat_template)
        role = foreign_role(messages, template)
        if role is not None:
            raise BadRequestError(f"the chat template knows no role {role[:60]!r}", "messages")
        write = partial(self.tokenizer.chat_text, tools=tools, answer_follows=answer_follows)
        try:
            if any(message.get(_CALLS) for message in messages) and leaves_out(
                _CALLS, messages, template=template, write=write
            ):
                problem = "the chat template of the job's model writes no calls of tools"
                raise BadRequestError(problem, "messages")
            return write(messages)
        except SpecError as error:
            raise BadRequestError(error.problem, "messages") from error
        except ValueError as error:
            raise BadRequestError(str(error), "messages") from error

    def _check_tools(self, asked: CompletionRequest) -> None:
        if not asked.tools or self.tokenizer is None:
            return
        if "tools" not in str(self.tokenizer.library.chat_template):
            raise BadRequestError("the chat template of the job's model writes no tools", "tools")
        if asked.may_call and self.tool_parser is None:
            problem = "the front does not know how the job's model writes calls of tools"
            advice = f"set spec.front.toolParser to one of {', '.join(TOOL_PARSERS[1:])}"
            raise BadRequestError(f"{problem}; {advice}, or tool_choice to none", "tools")

    def call_text(self, asked: CompletionRequest, prompt: Sequence[int]) -> ToolCallText | None:
        """What takes the calls from an answer; None if there can be none."""
        if self.tool_parser is None or not asked.tools or not asked.may_call:
            return None
        return ToolCallText(self.tool_parser, self.decode(prompt), asked.tools)

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
        if self.tokenizer is None and asked.json_schema:
            problem = "response_format needs a tokenizer, which the job's model lacks"
            raise BadRequestError(problem, "response_format")
        # Where a request names no length its response gets what room there is.
        length = asked.sampling.max_tokens if asked.names_length else 1
        positions = self.positions or MAX_POSITIONS
        if len(prompt) + length > positions:
            problem = (
                f"this model's maximum context length is {positions} tokens; the prompt has "
                f"{len(prompt)}, and {length} more are asked for"
            )
            raise BadRequestError(problem, field, TOO_LONG)
        bad = self.bounds.check_request(prompt, Response())
        if bad is not None:
            raise BadRequestError(bad.problem, field)

    def finish_reason(self, asked: CompletionRequest, response: Response, *, stopped: bool) -> str:
        """Why a response ended: `stop`, or `length`."""
        last = response.tokens[-1] if response.tokens else None
        if stopped or last in self.eos or last in asked.sampling.stop_token_ids:
            return "stop"
        return "length"
