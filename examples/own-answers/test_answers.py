"""Tests of the answers, for pytest: what they get wrong, a model learns."""

import json
from pathlib import Path

from make_answers import BOS, EOS, SEP, answers

LINES = Path(__file__).with_name("answers.jsonl").read_text().splitlines()


def test_each_answer_has_the_symbols_of_its_prompt_in_order() -> None:
    for line in LINES:
        row = json.loads(line)
        begin, *symbols, separator = row["tokens"]
        assert (begin, separator) == (BOS, SEP)
        assert row["completion"] == [*sorted(symbols), EOS]


def test_the_file_is_the_one_that_the_program_writes() -> None:
    assert answers() == LINES
