"""What a model writes cannot steer a terminal, nor turn or hide the text around it."""

import unicodedata

import pytest

from rollcall_cli.visible_text import LONGEST_LINE, visible, visible_lines, visible_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ä 漢 🙂", "plain ä 漢 🙂"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\r\nb", "a\\r⏎\nb"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\x00\x7f\t", "\\x00\\x7f\\t"),
        ("\u2028", "\\u2028"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_no_character_of_a_control_category_passes_but_the_end_of_a_line() -> None:
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE0200)]))
    left = {c for c in visible(every) if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"}}
    assert left == {"\n"}


def test_ends_of_lines_and_tabs_stay_in_several_lines() -> None:
    assert visible_lines("a\tb\n\x1b[2Jc\r") == "a\tb\n\\x1b[2Jc\\r"


def test_a_long_line_is_cut_and_says_so() -> None:
    found = visible_lines("x" * (LONGEST_LINE + 7) + "\nshort").split("\n")
    assert found == ["x" * LONGEST_LINE + "... and 7 more characters", "short"]


def test_each_text_of_a_json_value_is_made_visible() -> None:
    given = {"a": ["\x9b2J", 1, None, True], "b": {"c": "\u202e"}}
    assert visible_values(given) == {"a": ["\\x9b2J", 1, None, True], "b": {"c": "\\u202e"}}
