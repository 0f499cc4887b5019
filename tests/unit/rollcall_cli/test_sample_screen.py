"""A response on the screen: what is known of it, its tokens by colour, and nothing unescaped."""

import io
from typing import Any

import pytest
from rich.console import Console

from rollcall_cli.sample_screen import Colour, samples_screen
from tests.unit.rollcall_protocol.sample_records import sample_record

RESET = "\x1b[0m"


def screen(*, color: bool = False, colour: Colour = "advantage", **changes: Any) -> str:
    """One response as a terminal gets it."""
    out = io.StringIO()
    console = Console(
        file=out, width=100, force_terminal=color, color_system="standard" if color else None
    )
    console.print(samples_screen([sample_record(**changes)], colour=colour))
    return out.getvalue()


def test_what_is_known_of_a_response_is_shown() -> None:
    text = screen()
    for part in (
        "step 3, prompt 17, response 1 of 4: reward 0.25, group's mean 0.5",
        "ended by end token after 3 tokens and 0.5 s; weight versions 1 x2, 2 x1; trained 2;",
        "advantage -1.5",
        "reward by part: format 1",
        "<s>What is 2 + 2?",
        "It is 4</s>",
    ):
        assert part in text


def test_tokens_are_coloured_by_their_advantage() -> None:
    text = screen(color=True, advantages=((-1.5, 1), (0.5, 1), (0.0, 1)))
    assert f"\x1b[1;31mIt {RESET}" in text
    assert f"\x1b[32mis 4{RESET}" in text
    assert "</s>" in text.split("\x1b[32mis 4")[1]


def test_tokens_are_coloured_by_their_mismatch() -> None:
    text = screen(color=True, colour="mismatch")
    assert f"\x1b[33mis 4{RESET}" in text, "-0.2"
    assert f"\x1b[1;31m</s>{RESET}" in text, "0.7"
    assert "\x1b[33mIt" not in text, "0.01"


def test_tokens_of_an_environment_and_those_of_unknown_mismatch_are_dim() -> None:
    assert f"\x1b[2m</s>{RESET}" in screen(color=True, versions=((1, 2), (-1, 1)))
    assert "environment x1" in screen(versions=((1, 2), (-1, 1)))
    text = screen(color=True, colour="mismatch", mismatch=(None, 0.0, 0.0))
    assert f"\x1b[2mIt {RESET}" in text


def test_without_figures_of_tokens_there_are_no_colours() -> None:
    text = screen(color=True, advantages=(), mismatch=(), versions=())
    assert "It is 4</s>" in text


@pytest.mark.parametrize("place", ["prompt_text", "tokens", "ended", "parts"])
def test_text_from_a_model_or_a_trainer_does_not_reach_the_terminal_unescaped(place: str) -> None:
    evil = "\x1b]0;pwned\x07[bold red]\u202e"
    values: dict[str, Any] = {
        "tokens": (evil, "b", "c"),
        "parts": {evil: 1.0},
    }
    text = screen(**{place: values.get(place, evil)})
    assert "\\x1b]0;pwned\\x07[bold red]\\u202e" in text.replace("\n", "")
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_where_tokens_were_left_out_the_response_says_so() -> None:
    text = screen(left_out=7, tokens=("a", "b", "c", "d"), advantages=(), mismatch=(), versions=())
    assert "ab [7 tokens left out] cd" in text


def test_without_responses_it_says_what_decides_about_them() -> None:
    out = io.StringIO()
    Console(file=out).print(samples_screen([], colour="advantage"))
    assert "spec.observe.samples" in out.getvalue()
