"""The text of prompts and responses for reward functions, without torch and transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rollcall_runtime.worker.errors import SpecError

_FILE = "tokenizer.json"

Decode = Callable[[Sequence[int], bool], str]
"""The text of tokens; True: without special tokens."""


def open_decoder(directory: Path | None, *, field: str) -> Decode:
    """The decoder of the model in `directory`; SpecError for `field` if it has none."""
    path = directory / _FILE if directory is not None else None
    if path is None or not path.is_file():
        where = f"in '{directory}' has no {_FILE}" if directory else "is built in and has no text"
        problem = f"the reward needs text, and the job's model {where}"
        advice = "name a model that has one, or a function of prompt and response"
        raise SpecError(field, f"{problem}; {advice}")
    try:
        # Only a function that wants text needs it.
        from tokenizers import Tokenizer  # noqa: PLC0415

        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself for a wrong file
        problem = f"cannot read the tokenizer '{path}': {type(error).__name__}: {error}"
        raise SpecError(field, problem) from error

    def decode(tokens: Sequence[int], skip: bool, /) -> str:
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=skip)
        return text

    return decode
