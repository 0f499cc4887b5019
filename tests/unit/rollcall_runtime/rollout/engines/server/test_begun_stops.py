"""A stop string ends a response although another request sampled its first characters."""

from collections.abc import Sequence

import pytest

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.generation import GenerationRequest, NewTokens
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.engines.server.begun_stops import BegunStops


def text(tokens: Sequence[int]) -> str:
    """A token is a character."""
    return "".join(map(chr, tokens))


def request(begun: str, *stops: str) -> GenerationRequest:
    tokens = tuple(map(ord, begun))
    response = Response(tokens, (-1.0,) * len(tokens), (1,) * len(tokens))
    return GenerationRequest((1,), SamplingConfig(stop=stops), seed=0, begun=response)


def sampled(letters: str) -> NewTokens:
    size = len(letters)
    tokens = tuple(map(ord, letters))
    return NewTokens(tokens, (-0.5,) * size, (2,) * size, all_versions=(3,) * size)


@pytest.mark.parametrize(
    ("begun", "pieces", "last", "finished"),
    [
        ("aEN", ["Dbc"], "D", True),
        ("aE", ["N", "Db", "c"], "D", True),
        ("aEN", ["bD"], "bD", False),
        ("", ["aENDbc"], "aENDbc", False),
        ("a", ["bcdefgh", "END"], "END", False),
    ],
    ids=["one-piece", "several-pieces", "not-completed", "nothing-begun", "the-servers-to-find"],
)
def test_the_token_that_completes_it_is_the_last(
    begun: str, pieces: list[str], last: str, finished: bool
) -> None:
    stops = BegunStops(request(begun, "END", "other"), text=text)
    found = [stops.cut(sampled(pieces[0]))]
    for piece in pieces[1:]:
        if not found[-1].finished:
            found.append(stops.cut(sampled(piece)))
    assert (text(found[-1].tokens), found[-1].finished) == (last, finished)


def test_versions_and_probabilities_are_cut_with_the_tokens() -> None:
    piece = BegunStops(request("aEN", "END"), text=text).cut(sampled("Dbc"))
    expected = NewTokens((ord("D"),), (-0.5,), (2,), finished=True, all_versions=(3,))
    assert piece == expected


def test_without_stop_strings_nothing_is_decoded() -> None:
    def refuse(_: Sequence[int]) -> str:
        raise AssertionError("decoded")

    piece = sampled("abc")
    assert BegunStops(request("aEN"), text=refuse).cut(piece) is piece
