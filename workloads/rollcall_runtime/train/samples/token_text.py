"""The text of each token, with special tokens visible."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_FILE = "tokenizer.json"


class TokenText:
    """By the tokenizer of the model in `directory`; a model without one has its tokens' numbers."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._opened = False
        self._tokenizer: Any = None

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """A text for each token; put together they are the text of all.

        A token that ends within a character has none: the one that completes it has the character.
        """
        tokenizer = self._open()
        if tokenizer is None:
            return [f"{token} " for token in tokens]
        # Opened before: the package is there.
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415

        stream = DecodeStream(skip_special_tokens=False)
        try:
            found = [stream.step(tokenizer, token) or "" for token in tokens]
        except Exception:  # noqa: BLE001 - tokenizers raises Exception itself
            return [tokenizer.decode([token], skip_special_tokens=False) for token in tokens]
        joined, whole = "".join(found), tokenizer.decode(list(tokens), skip_special_tokens=False)
        if found and whole.startswith(joined):
            found[-1] += whole[len(joined) :]  # a character that was never completed
        return found

    def _open(self) -> Any:
        """Once: a tokenizer may have many megabytes, and not every job records responses."""
        if self._opened:
            return self._tokenizer
        self._opened = True
        path = self._directory / _FILE if self._directory is not None else None
        if path is not None and path.is_file():
            try:
                # Models without text need no package for it.
                from tokenizers import Tokenizer  # noqa: PLC0415

                self._tokenizer = Tokenizer.from_file(str(path))
            except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
                text = "recorded responses are numbers of tokens: cannot read %s: %s"
                log.warning(text, path, error)
        return self._tokenizer
