"""The tokenizer of a model: special tokens, chat template, and whether it fits the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from rollcall_runtime.models.chat_template import rendered
from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rollcall_runtime.models.model_source import ModelSource


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """Text to tokens and back, as the model was trained.

    `library` is transformers' tokenizer, for what is not here. `eos` has all tokens that end a
    response, by the model's own settings too. No token for padding is needed.
    """

    directory: Path
    library: Any
    eos: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Tokens of `text` alone: special tokens are neither added nor left out.

        ValueError if it is no Unicode, such as half of a surrogate pair, which JSON may hold.
        """
        text.encode()
        tokens: list[int] = self.library.encode(text, add_special_tokens=False)
        return tokens

    def prompt_tokens(self, text: str) -> list[int]:
        """Tokens of a text that a response follows, with what the tokenizer writes before it.

        An end of the text that it writes behind (as with `add_eos_token`) is left out. ValueError
        as `encode`.
        """
        plain = self.encode(text)
        tokens: list[int] = list(self.library(text)["input_ids"])
        added = len(tokens) - len(plain)
        behind = (n for n in range(added + 1) if tokens[added - n : len(tokens) - n] == plain)
        for _ in range(next(behind, 0)):
            if tokens[-1] not in self.eos:
                break
            tokens.pop()
        return tokens

    @property
    def end(self) -> int | None:
        """The token of `eos` that a text is learnt to end with: the tokenizer's own if it has one.

        None if nothing ends a response.
        """
        own: int | None = self.library.eos_token_id
        return min(self.eos, default=None) if own is None else own

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of `tokens`; with `special`, that of special tokens too."""
        text: str = self.library.decode(
            list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        answer_follows: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Messages with `role` and `content` as the chat template writes them, with `tools`.

        `answer_follows` ends with the beginning of the assistant's turn. `tools`: JSON schemas of
        the functions that the assistant may call. SpecError if there is no template; ValueError if
        it refuses the messages, or takes too long; see `chat_template`.
        """
        return self._rendered(messages, tools, answer_follows=answer_follows)[0]

    def marked_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, list[tuple[int, int]]]:
        """A chat as `chat_text`, and the spans of characters that the template marks as generated.

        Errors as `chat_text`.
        """
        return self._rendered(messages, tools, answer_follows=False, marked=True)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        **options: bool,
    ) -> tuple[str, list[tuple[int, int]]]:
        self.need_chat_template()
        schemas = [dict(tool) for tool in tools or ()] or None
        try:
            return rendered(self.library, messages, schemas, **options)
        except (ValueError, TypeError) as error:  # TypeError: what JSON does not have
            raise ValueError(f"the chat template refuses these messages: {error}") from error

    def chat_tokens(
        self, messages: Sequence[Mapping[str, Any]], *, answer_follows: bool = True
    ) -> list[int]:
        """Tokens of `chat_text`; the template itself writes what begins a text."""
        return self.encode(self.chat_text(messages, answer_follows=answer_follows))

    def need_chat_template(self) -> None:
        """SpecError if there is no chat template."""
        if not self.library.chat_template:
            problem = "has no chat template, which messages need"
            advice = "add chat_template.jinja to it, or give prompts as text or tokens"
            raise SpecError(FIELD, f"the tokenizer in '{self.directory}' {problem}; {advice}")


def open_tokenizer(source: ModelSource) -> ModelTokenizer:
    """The tokenizer beside the model. SpecError if there is none, or if it is another model's.

    The model may have more tokens than the tokenizer, as vocabularies are rounded up; not fewer.
    """
    directory = source.directory
    if directory is None or not source.has_tokenizer:
        where = f"the directory '{directory}'" if directory else f"the model {source.path!r}"
        problem = f"{where} has no tokenizer, which text and messages need"
        raise SpecError(FIELD, f"{problem}; give prompts as tokens, or name a model that has one")
    try:
        library = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # as which a panic of tokenizers arrives
        problem = f"cannot read the tokenizer in '{directory}': {_reason(error)}"
        raise SpecError(FIELD, problem) from error
    _check_vocabulary(library, source)
    own = set() if library.eos_token_id is None else {library.eos_token_id}
    return ModelTokenizer(directory, library, source.named_eos | own)


def _reason(error: BaseException) -> str:
    """What to do where the library's own advice is to run the directory's code."""
    if "trust_remote_code" in str(error):
        advice = "save it with a class of transformers, such as PreTrainedTokenizerFast"
        return f"it needs code that the directory brings, which is never run; {advice}"
    return f"{type(error).__name__}: {error}"


def _check_vocabulary(library: Any, source: ModelSource) -> None:
    known = set(library.get_vocab().values())
    problem = ""
    if known and max(known) >= source.vocabulary:
        problem = (
            f"has tokens up to {max(known)}, but the model's vocabulary ends at "
            f"{source.vocabulary - 1}"
        )
    elif not source.named_eos <= known:
        lacking = ", ".join(map(str, sorted(source.named_eos - known)))
        problem = f"does not know the model's token {lacking}, which ends a response"
    if problem:
        raise SpecError(
            FIELD,
            f"the tokenizer in '{source.directory}' {problem}: it is another model's; copy model "
            "and tokenizer from one place",
        )
