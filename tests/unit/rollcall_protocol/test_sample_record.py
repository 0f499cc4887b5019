"""A recorded response survives its line, and nothing else is read as one."""

import json
from typing import Any

import pytest

from rollcall_protocol.sample_record import (
    MOST_LINE,
    MOST_TOKENS,
    expanded,
    head_of,
    read_records,
    runs,
    thinned,
)
from tests.unit.rollcall_protocol.sample_records import sample_record


@pytest.mark.parametrize("reward", [0.0, -1e6, 1e-7, 1 / 3, 123456.789, -2.5e-300])
def test_a_line_gives_the_record_and_what_it_is_chosen_by(reward: float) -> None:
    record = sample_record(reward=reward, tokens=("\x1b[2J", "é", "\u202e"))
    line = record.line()
    assert line.isascii()
    assert read_records(line) == [record]
    head = head_of(line)
    assert head is not None
    assert (head.step, head.prompt, head.sample, head.time) == (3, 17, 0, 1000.5)
    assert head.reward == reward


def test_a_line_that_is_cut_off_is_no_record() -> None:
    line = sample_record().line()
    assert head_of(line[:-1]) is None
    assert head_of(line[:-30] + b"\n") is None
    assert head_of(b"x" + line) is None
    assert head_of(line[:-2] + b" " * MOST_LINE + b"}\n") is None
    assert read_records(line[:-30] + b"\n" + line + line[:50]) == [sample_record()]


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -2},
        {"step": 1.5},
        {"step": True},
        {"step": 2**63},
        {"reward": "high"},
        {"reward": float("nan")},
        {"seconds": float("inf")},
        {"parts": {"x": "y"}},
        {"parts": {"x" * 257: 1.0}},
        {"parts": {str(number): 1.0 for number in range(65)}},
        {"parts": []},
        {"prompt_text": ["a"]},
        {"prompt_text": "x" * 40_000},
        {"tokens": ["a", "b"]},
        {"tokens": ["a", "b", 3]},
        {"tokens": ["a", "b", "x" * 257]},
        {"tokens": "abc"},
        {"tokens": ["a"] * (MOST_TOKENS + 1), "advantages": [], "mismatch": [], "versions": []},
        {"advantages": [[0.5, 10**12]]},
        {"advantages": [[0.5, 4], [0.5, -1]]},
        {"advantages": [[0.5]]},
        {"mismatch": [0.5]},
        {"mismatch": [0.5, 0.5, "x"]},
        {"versions": [[1.5, 3]]},
        {"ended": "x" * 257},
        {"ended": None},
    ],
)
def test_what_is_out_of_bounds_is_no_record(wrong: dict[str, Any]) -> None:
    value = json.loads(sample_record().line())
    assert len(read_records(json.dumps(value).encode())) == 1
    assert read_records(json.dumps(value | wrong).encode()) == []


def test_what_is_no_object_is_no_record() -> None:
    lines = [b"", b"[1]", b"nonsense", b"[" * 100_000, b"{}", b"\xff\xfe"]
    assert read_records(b"\n".join(lines)) == []


def test_a_mismatch_may_be_unknown() -> None:
    for mismatch in ((), (None, 0.5, None)):
        record = sample_record(mismatch=mismatch)
        assert read_records(record.line()) == [record]


def test_runs_are_expanded_to_what_they_were_made_of() -> None:
    values = [1, 1, 2, 1, 1, 1]
    assert runs(values) == ((1, 2), (2, 1), (1, 3))
    assert expanded(runs(values)) == values
    assert expanded(runs([])) == []


def test_every_second_step_is_thinned_out_but_the_first_and_the_newest() -> None:
    sizes = dict.fromkeys(range(1, 17), 10)
    assert thinned(sizes, most=100) == [1, 3, 5, 7, 9, 11, 13, 15, 16]
    assert thinned(sizes, most=50) == [1, 5, 9, 13, 16]
    assert thinned(sizes, most=160) == list(range(1, 17))


def test_the_newest_step_is_kept_however_large_it_is() -> None:
    assert thinned({1: 10, 2: 1000}, most=100) == [2]
    assert thinned({}, most=100) == []
