"""The live screen goes on where the API server does not answer."""

import asyncio
import json
import re
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from rollcall_cli import live
from rollcall_cli.job_summary import summarize
from rollcall_operator.kube.errors import UnreachableError
from tests.unit.rollcall_cli.example_record import record

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


SUMMARY = summarize(record(), [])


async def watched(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, Any] | Exception) -> str:
    """What was drawn until the answers were used up."""
    left, done = list(answers), asyncio.Event()

    async def read(*_: Any, **__: Any) -> dict[str, Any]:
        if not left:
            done.set()
            await asyncio.Event().wait()
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(live, "read_summary", read)
    file = StringIO()
    console = Console(file=file, width=120, force_terminal=True, color_system=None)
    client = cast("KubeClient", None)
    watching = asyncio.create_task(
        live.watch(client, namespace="team", job="reverse", every=0.0, console=console)
    )
    ended = asyncio.create_task(done.wait())
    await asyncio.wait({watching, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if watching.done():
        watching.result()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return file.getvalue()


def test_the_pace_is_that_of_the_last_readings_and_begins_again_with_the_trainer() -> None:
    pace, running = live.Pace(), {"phase": "Running", "maxSteps": 100}
    assert pace.words(running | {"step": 10}, 0.0) == ""
    assert pace.words(running | {"step": 20}, 60.0) == "10.0 steps a minute, about 8 min left"
    assert pace.words(running | {"step": 80}, 180.0) == "30.0 steps a minute, about 40 s left"
    assert pace.words(running | {"step": 60}, 190.0) == ""
    assert pace.words(running | {"step": 60, "phase": "Starting"}, 200.0) == ""


def test_steps_that_only_the_trainer_counts_have_a_pace_and_no_end() -> None:
    pace, running = live.Pace(), {"phase": "Running", "maxSteps": 0}
    assert pace.words(running | {"step": 10}, 0.0) == ""
    assert pace.words(running | {"step": 20}, 60.0) == "10.0 steps a minute"


async def test_without_a_number_of_steps_the_screen_has_the_pace_and_no_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uncounted = SUMMARY | {"maxSteps": 0}
    text = await watched(monkeypatch, uncounted | {"step": 1}, uncounted | {"step": 2})
    assert "━━━" not in text
    assert re.search(r"\d steps a minute *\n", text)


async def test_the_newest_status_and_an_outage_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = await watched(monkeypatch, SUMMARY, UnreachableError("no answer"), SUMMARY)
    assert text.count("team/reverse: Running, step 9 of 10") == 3
    assert text.count("Not read again: no answer") == 1
    assert text.count("Ctrl-C ends this") == 2


async def test_the_screen_has_a_bar_and_the_pace_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = await watched(monkeypatch, SUMMARY | {"step": 1}, SUMMARY | {"step": 2})
    assert "━━━" in text
    assert re.search(r"\d steps a minute, about \d+ \w+ left *\n", text)


async def test_what_cannot_be_read_at_first_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError):
        await watched(monkeypatch, UnreachableError("no answer"))


async def test_as_json_each_reading_is_a_line_and_an_outage_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[dict[str, Any] | Exception] = [SUMMARY, UnreachableError("no answer"), SUMMARY]

    async def read(*_: Any, **__: Any) -> dict[str, Any]:
        if not answers:
            raise asyncio.CancelledError
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(live, "read_summary", read)
    with pytest.raises(asyncio.CancelledError):
        await live.print_lines(cast("KubeClient", None), namespace="team", job="reverse", every=0.0)
    out, err = capsys.readouterr()
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["reverse", "reverse"]
    assert err == "rollcall: not read again: no answer\n"
