"""`rollcall samples`: its options become a query, and what is wrong is named."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollcall_cli import main as command
from rollcall_cli import samples_command
from rollcall_operator.kube.errors import UnreachableError
from rollcall_protocol.sample_query import SampleQuery
from tests.unit.rollcall_protocol.sample_records import sample_record


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SampleQuery]:
    """A cluster with a job, and what its trainer is asked for."""
    queries: list[SampleQuery] = []

    @asynccontextmanager
    async def opened(_: Any) -> AsyncIterator[tuple[None, str]]:
        yield None, "team"

    async def get_job(*_: Any, **__: Any) -> None: ...

    async def read_samples(*_: Any, query: SampleQuery, **__: Any) -> Any:
        queries.append(query)
        return [sample_record()]

    async def follow_samples(*_: Any, query: SampleQuery, **__: Any) -> Any:
        queries.append(query)
        yield [sample_record()]
        yield UnreachableError("the trainer is away")
        yield []
        yield [sample_record(step=4)]

    for function in (get_job, read_samples, follow_samples):
        monkeypatch.setattr(samples_command, function.__name__, function)
    monkeypatch.setattr(samples_command, "chosen_cluster", opened)
    return queries


def samples(*words: str) -> int:
    return command.main(["samples", "reverse", *words])


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ([], SampleQuery(limit=8)),
        (["--step", "7", "--worst"], SampleQuery(step=7, order="worst")),
        (["--best", "--limit", "3"], SampleQuery(order="best", limit=3)),
        (["--prompt", "17", "--follow"], SampleQuery(prompt=17)),
    ],
)
def test_options_are_a_query(
    words: list[str], query: SampleQuery, asked: list[SampleQuery]
) -> None:
    assert samples(*words) == 0
    assert asked == [query]


def test_a_response_and_what_its_colours_mean_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert samples("--color", "mismatch") == 0
    out = capsys.readouterr().out
    assert "It is 4</s>" in out
    assert "log-probability" in out


def test_as_json_each_response_is_a_line_of_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    assert samples("-o", "json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isascii()
    found = json.loads(line)
    assert found["response"] == "It is 4</s>"
    assert found["advantages"] == [-1.5] * 3
    assert found["versions"] == [1, 1, 2]
    assert found["rewardParts"] == {"format": 1.0}


def test_followed_responses_are_printed_as_they_come_and_outages_are_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert samples("--follow", "-o", "json") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["step"] for line in out.splitlines()] == [3, 4]
    assert err == "rollcall: not read again: the trainer is away\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--limit", "0"], "limit is 0; it must be from 1 to 256"),
        (["--step", "x"], "step is x; it must be from 0"),
    ],
)
def test_a_wrong_option_is_named(
    words: list[str],
    message: str,
    asked: list[SampleQuery],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert samples(*words) == 1
    assert message in capsys.readouterr().err
    assert not asked
