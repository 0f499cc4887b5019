"""Stop strings of which a response had the first characters before a server went on with it.

A server looks for stop strings in what it samples for a request. A response goes on in another
request after the loss of a rollout, and after the update of an adapter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rollcall_runtime.rollout.engines.token_choice import completes_a_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_protocol.wire.generation import GenerationRequest, NewTokens


class BegunStops:
    """Of one request; `text` says what tokens are."""

    def __init__(self, request: GenerationRequest, *, text: Callable[[Sequence[int]], str]) -> None:
        self._stops = request.sampling.stop
        self._tokens = list(request.begun.tokens)
        self._text = text
        longest = max((len(stop.encode()) for stop in self._stops), default=0)
        self._watched = longest if self._tokens else 0  # tokens; one is a byte at least

    def cut(self, piece: NewTokens) -> NewTokens:
        """The next piece of the stream: finished with the token that completes a stop string."""
        for number, token in enumerate(piece.tokens, 1):
            if self._watched < 1:
                break
            self._watched -= 1
            self._tokens.append(token)
            if completes_a_stop(self._tokens, self._stops, self._text):
                return _first(piece, number)
        return piece


def _first(piece: NewTokens, tokens: int) -> NewTokens:
    """So many tokens of `piece`, with which the response is finished."""
    after = len(piece.tokens) - tokens
    return replace(
        piece,
        tokens=piece.tokens[:tokens],
        logprobs=piece.logprobs[:tokens],
        versions=piece.versions[:tokens],
        all_versions=piece.all_versions[: len(piece.all_versions) - after],
        finished=True,
        top=piece.top[:tokens],
    )
