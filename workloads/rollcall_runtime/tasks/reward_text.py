"""The text of prompts and responses for reward functions, without torch and transformers."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import JobConfig
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

_FILE = "tokenizer.json"

Decode = Callable[[Sequence[int], bool], str]
"""The text of tokens; True: without special tokens."""

_PATTERNS = ("extract", "pattern")  # settings of rewards with a name


@dataclass(frozen=True, slots=True)
class ResponseText:
    """What of a response its text has: not the token of `ends` that ended it, and special tokens
    with `keep_special` alone.
    """

    ends: frozenset[int] = frozenset()
    keep_special: bool = False

    @classmethod
    def of(cls, job: JobConfig, *, ends: frozenset[int]) -> "ResponseText":
        """For the rewards of a job whose model ends responses with `ends`."""
        return cls(ends, job.reward_scoring.keep_special_tokens)

    def read(self, decode: Decode, response: Sequence[int]) -> str:
        """The text of a response."""
        ended = bool(response) and response[-1] in self.ends
        return decode(response[:-1] if ended else response, not self.keep_special)


def open_decoder(directory: Path | None, *, field: str) -> Decode:
    """The decoder of the model in `directory`; SpecError for `field` if it has none."""
    path = directory / _FILE if directory is not None else None
    if path is None or not path.is_file():
        where = f"in '{directory}' has no {_FILE}" if directory else "is built in and has no text"
        problem = f"the reward needs text, and the job's model {where}"
        advice = "name a model that has one, or a function of prompt and response"
        raise SpecError(field, f"{problem}; {advice}")
    tokenizer = _tokenizer(path, field)

    def decode(tokens: Sequence[int], skip: bool, /) -> str:
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=skip)
        return text

    return decode


def warn_of_unseen_tags(job: JobConfig, directory: Path | None) -> None:
    """Log each setting of a reward with a name that asks for a special token of the tokenizer in
    `directory`, if these are left out of the text that rewards see.
    """
    path = directory / _FILE if directory is not None else None
    asked = list(_patterns(job))
    if job.reward_scoring.keep_special_tokens or not asked or path is None or not path.is_file():
        return
    known = _tokenizer(path, "spec.reward").get_added_tokens_decoder().values()
    special = [token.content for token in known if token.special]
    for field, pattern in asked:
        plain = re.sub(r"\\([^\w\s])", r"\1", pattern)  # as it was before it was escaped
        if tags := [tag for tag in special if tag in plain]:
            log.warning(
                "%s: %r asks for %s, and special tokens of the tokenizer are left out of the text "
                "that rewards see: set spec.reward.keepSpecialTokens to true",
                *(field, pattern, ", ".join(tags)),
            )


def _patterns(job: JobConfig) -> Iterator[tuple[str, str]]:
    """The regular expressions of rewards with a name, each with its field."""
    configs: list[tuple[str, str, dict[str, Any]]] = [
        ("spec.reward", job.reward_function, job.reward_scoring.config),
        *(
            (f"spec.reward.parts[{number}]", part.function, part.config)
            for number, part in enumerate(job.reward_scoring.parts)
        ),
    ]
    for of, function, config in configs:
        for name in _PATTERNS:
            pattern = config.get(name)
            if isinstance(pattern, str) and ":" not in function:
                yield f"{of}.config.{name}", pattern


def _tokenizer(path: Path, field: str) -> Any:
    try:
        # Only a function that wants text needs it.
        from tokenizers import Tokenizer  # noqa: PLC0415

        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself for a wrong file
        problem = f"cannot read the tokenizer '{path}': {type(error).__name__}: {error}"
        raise SpecError(field, problem) from error
