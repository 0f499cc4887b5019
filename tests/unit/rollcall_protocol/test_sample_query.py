"""A query chooses among lines without reading what it does not give, and its answer is bounded."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from rollcall_protocol import sample_query
from rollcall_protocol.sample_query import BadQueryError, SampleQuery
from rollcall_protocol.sample_record import read_records
from tests.unit.rollcall_protocol.sample_records import sample_record

# Steps 1 to 20, of two responses each, to the prompts 101 to 120.
LINES = [
    sample_record(
        step=step,
        prompt=100 + step,
        sample=sample,
        time=1000.0 + step,
        reward=round(step / 100 + sample / 2, 4),
    ).line()
    for step in range(1, 21)
    for sample in range(2)
]


def chosen(query: SampleQuery, lines: Sequence[bytes] = LINES) -> list[tuple[int, int]]:
    """Step and number of each response."""
    found = query.choose(lambda: lines)
    return [(record.step, record.sample) for record in read_records(b"".join(found))]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (SampleQuery(limit=3), [(19, 1), (20, 0), (20, 1)]),
        (SampleQuery(step=7), [(7, 0), (7, 1)]),
        (SampleQuery(prompt=105), [(5, 0), (5, 1)]),
        (SampleQuery(step=7, prompt=105), []),
        (SampleQuery(since=1020.0), [(20, 0), (20, 1)]),
        (SampleQuery(order="worst", limit=2), [(11, 0), (12, 0)]),
        (SampleQuery(order="best", limit=2), [(20, 1), (19, 1)]),
        (SampleQuery(order="worst", step=2, limit=1), [(2, 0)]),
        (SampleQuery(order="best", prompt=103), [(3, 1), (3, 0)]),
        (SampleQuery(order="spread", limit=4), [(1, 0), (6, 0), (11, 0), (16, 0)]),
        (SampleQuery(order="spread", step=3), [(3, 0), (3, 1)]),
    ],
)
def test_what_is_asked_for_is_chosen(query: SampleQuery, expected: list[tuple[int, int]]) -> None:
    assert chosen(query) == expected
    assert chosen(query, []) == []


def test_lines_that_are_no_records_are_passed_over() -> None:
    assert chosen(SampleQuery(limit=1), [*LINES, b"{}\n", LINES[0][:-9]]) == [(20, 1)]


@pytest.mark.parametrize("order", ["newest", "worst", "spread"])
def test_an_answer_is_no_longer_than_its_bound(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_query, "MOST_ANSWER", 3 * len(LINES[0]))
    found = chosen(SampleQuery(order=order, limit=256))
    assert 1 <= len(found) <= 3
    if order == "newest":
        assert found[-1] == (20, 1)


@pytest.mark.parametrize(
    "query",
    [
        SampleQuery(),
        SampleQuery(step=0, prompt=2**40, since=1795888053.088, order="worst", limit=256),
    ],
)
def test_a_query_survives_its_route(query: SampleQuery) -> None:
    address = urlsplit(query.route())
    assert address.path == "/samples"
    assert SampleQuery.of(dict(parse_qsl(address.query))) == query


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": "-1"}, "step is -1; it must be from 0"),
        ({"step": "9" * 5000}, "step is 9999999"),
        ({"step": "1e3"}, "step is 1e3"),
        ({"step": "٣"}, "step is"),
        ({"prompt": ""}, "prompt is"),
        ({"limit": "0"}, "limit is 0; it must be from 1 to 256"),
        ({"limit": "257"}, "limit is 257"),
        ({"since": "now"}, "since is now; it must be seconds since 1970"),
        ({"since": "nan"}, "since is nan"),
        ({"since": "-1"}, "since is -1"),
        ({"order": "odd"}, "order is odd; it must be one of newest, worst, best, spread"),
        ({"x" * 5000: "1"}, "is unknown; known are limit, order, prompt, since, step"),
    ],
)
def test_a_wrong_query_is_named_in_a_few_words(given: dict[str, str], message: str) -> None:
    with pytest.raises(BadQueryError) as caught:
        SampleQuery.of(given)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200
