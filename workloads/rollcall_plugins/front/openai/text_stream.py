"""The text of a response while its tokens come: whole characters, and nothing of a stop string."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.models.tokenizer import ModelTokenizer


class TextStream:
    """The text of tokens that come one after the other; special tokens but `kept` are left out.

    `stopped`: one of the strings `stop` has come; what is behind it, and itself, is left out.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        stop: Sequence[str] = (),
        kept: Mapping[int, str] | None = None,
    ) -> None:
        self._library = tokenizer.library.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop, self._held, self._kept = tuple(stop), "", kept or {}
        self.stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """The text that these tokens make certain; a part of it may come later."""
        if self.stopped:
            return ""
        for token in tokens:
            self._held += self._text_of(token)
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_begun(self._held, stop) for stop in self._stop), default=0)
        at = len(self._held) - keep
        text, self._held = self._held[:at], self._held[at:]
        return text

    def _text_of(self, token: int) -> str:
        if token in self._kept:
            return self._kept[token]
        try:
            return self._stream.step(self._library, token) or ""
        except Exception:  # noqa: BLE001 - tokenizers' own, where bytes before are no character
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._stream.step(self._library, token) or ""

    def rest(self) -> str:
        """What was held back, now that no more tokens come."""
        text, self._held = self._held, ""
        return text


def _begun(text: str, stop: str) -> int:
    """How many of the last characters of `text` may be the beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
