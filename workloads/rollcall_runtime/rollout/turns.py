"""A response in turns: what the model sampled alternates with what an environment gave."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens that were `sampled`, and those that the environment gave behind them, if it has."""

    sampled: tuple[int, ...]
    given: tuple[int, ...] = ()


def turns_of(response: Response) -> tuple[tuple[int, ...], list[Turn]]:
    """What the environment gave before the first turn, and the turns, in their order."""
    pairs = zip(response.tokens, response.versions, strict=True)
    runs = [
        (is_given, tuple(token for token, _ in run))
        for is_given, run in groupby(pairs, key=lambda pair: pair[1] == NOT_SAMPLED)
    ]
    first = runs.pop(0)[1] if runs and runs[0][0] else ()
    turns = [
        Turn(sampled, runs[at + 1][1] if at + 1 < len(runs) else ())
        for at, (_, sampled) in enumerate(runs)
        if at % 2 == 0
    ]
    return first, turns


def cut(response: Response, length: int) -> Response:
    """The first `length` tokens, to be continued."""
    return Response(
        response.tokens[:length], response.logprobs[:length], response.versions[:length]
    )


def since(response: Response, start: int) -> Response:
    """The tokens from number `start` on."""
    return Response(response.tokens[start:], response.logprobs[start:], response.versions[start:])


def whole_turns(response: Response) -> Response:
    """The response without a last turn that the environment has not answered.

    Another rollout does not know whether that turn had ended. A finished response stays whole.
    """
    if response.finished:
        return response
    length = len(response.versions)
    while length and response.versions[length - 1] != NOT_SAMPLED:
        length -= 1
    return cut(response, length)


def with_given(response: Response, tokens: Sequence[int]) -> Response:
    """The response with tokens of the environment behind it."""
    count = len(tokens)
    return Response(
        (*response.tokens, *tokens),
        (*response.logprobs, *(0.0,) * count),
        (*response.versions, *(NOT_SAMPLED,) * count),
    )
