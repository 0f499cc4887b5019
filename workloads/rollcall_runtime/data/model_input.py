"""What a model takes: tokens of its vocabulary, made by its tokenizer and chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.models.tokenizer import ModelTokenizer

Message = dict[str, Any]


@dataclass(frozen=True)
class ModelInput:
    """Token numbers below `vocabulary`, at most `context` of them (None: any number).

    `load_tokenizer` is called when the first row needs a tokenizer. SpecError if there is none.
    `bounded_by` says what `context` is, for messages.
    """

    vocabulary: int
    context: int | None
    load_tokenizer: Callable[[], ModelTokenizer]
    bounded_by: str = "the model's context"

    @classmethod
    def of(cls, source: ModelSource, *, rollout_context: int = 0) -> ModelInput:
        """What this model takes, where rollouts take at most `rollout_context` tokens (0: all)."""

        def load() -> ModelTokenizer:
            # Imports transformers, which a model without a tokenizer can do without.
            from rollcall_runtime.models.tokenizer import open_tokenizer  # noqa: PLC0415

            return open_tokenizer(source)

        found = cls(source.vocabulary, source.positions, load)
        if rollout_context and (found.context is None or rollout_context < found.context):
            return replace(
                found, context=rollout_context, bounded_by="maxModelLen of spec.rollouts"
            )
        return found

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer, loaded when it is first asked for."""
        return self.load_tokenizer()

    def check_tokens(self, tokens: Sequence[int], *, place: str, field: str) -> None:
        """SpecError at `field` if the model does not know a token."""
        highest = max(tokens)
        if highest >= self.vocabulary:
            problem = (
                f"{place}: the model knows the tokens 0 to {self.vocabulary - 1}, not {highest}"
            )
            raise SpecError(field, f"{problem}; were they made by its tokenizer?")

    def text_tokens(self, text: str) -> list[int]:
        """A text's tokens as a prompt; see `ModelTokenizer.prompt_tokens`."""
        return self.tokenizer.prompt_tokens(text)

    def chat_text(
        self,
        messages: Sequence[Message],
        *,
        answer_follows: bool,
        tools: Sequence[dict[str, Any]] | None = None,
        place: str,
        field: str,
    ) -> str:
        """The chat as the template writes it; SpecError at `field` if the template refuses it."""
        try:
            return self.tokenizer.chat_text(messages, answer_follows=answer_follows, tools=tools)
        except SpecError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise SpecError(field, f"{place}: {error}") from error
        except ImportError as error:
            problem = f"chat templates need the packages transformers and jinja2: {error}"
            raise SpecError(field, f"{problem}; or give prompts as text or tokens") from error
