"""A response falls into turns by the tokens that were given, and back."""

import pytest

from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_runtime.rollout.turns import Turn, cut, since, turns_of, whole_turns, with_given


def response(pattern: str, *, finished: bool = False) -> Response:
    """A token for each letter: `s` was sampled, `g` given; they are numbered from 0."""
    versions = tuple(NOT_SAMPLED if letter == "g" else 4 for letter in pattern)
    logprobs = tuple(0.0 if letter == "g" else -1.0 for letter in pattern)
    return Response(tuple(range(len(pattern))), logprobs, versions, finished)


@pytest.mark.parametrize(
    ("pattern", "first", "turns"),
    [
        ("", (), []),
        ("ss", (), [Turn((0, 1))]),
        ("g", (0,), []),
        ("gs", (0,), [Turn((1,))]),
        ("ssg", (), [Turn((0, 1), (2,))]),
        ("ggsgssg", (0, 1), [Turn((2,), (3,)), Turn((4, 5), (6,))]),
        ("sgs", (), [Turn((0,), (1,)), Turn((2,))]),
    ],
)
def test_given_tokens_part_the_turns(
    pattern: str, first: tuple[int, ...], turns: list[Turn]
) -> None:
    assert turns_of(response(pattern)) == (first, turns)


@pytest.mark.parametrize(
    ("pattern", "kept"), [("", ""), ("ss", ""), ("gss", "g"), ("sgss", "sg"), ("sgssg", "sgssg")]
)
def test_what_was_not_answered_is_not_kept(pattern: str, kept: str) -> None:
    assert whole_turns(response(pattern)) == response(kept)


def test_a_finished_response_is_kept_whole() -> None:
    assert whole_turns(response("sgss", finished=True)) == response("sgss", finished=True)


def test_a_response_is_cut_and_continued() -> None:
    whole = response("ssgs")
    assert cut(whole, 2) == response("ss")
    assert since(whole, 3) == Response((3,), (-1.0,), (4,))
    assert with_given(response("ss"), [2, 3]) == response("ssgg")
