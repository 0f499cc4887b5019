"""What AReaL is given for a sample, and what happens when there is none."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rollcall.areal
from rollcall import RollcallError
from rollcall.areal import _Engine, _Publications


async def test_a_version_that_is_being_published_is_waited_for() -> None:
    publications = _Publications(cast("Any", None))
    asked = asyncio.create_task(publications.numbers((7, 7)))
    await asyncio.sleep(0.05)
    assert not asked.done(), "rollouts serve it, and its publication has not returned"
    publications._numbers[7] = 3
    assert await asked == [3, 3]


async def test_a_version_of_no_publication_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollcall.areal, "VERSION_SECONDS", 0.05)
    with pytest.raises(RollcallError, match="tokens are of version 7"):
        await _Publications(cast("Any", None)).numbers((7,))


async def test_whatever_goes_wrong_with_a_sample_ends_training() -> None:
    seen: list[Exception] = []

    async def fail(_: object) -> None:
        raise KeyError("a fault of the adapter")

    engine: Any = object.__new__(_Engine)
    engine._generate = fail
    engine.workflow_executor = SimpleNamespace(
        is_paused=lambda: False, dispatcher=SimpleNamespace(_set_thread_exception=seen.append)
    )
    with pytest.raises(KeyError):
        await engine.agenerate(cast("Any", None))
    assert [type(error) for error in seen] == [KeyError], "AReaL would ask for another for ever"
