"""Answers get places in turn by API key and by request, and a key has its part of the room."""

import asyncio
from contextlib import ExitStack, suppress

import pytest

from rollcall_plugins.front.openai.admission import Admission, BusyError
from rollcall_plugins.front.openai.fair_places import Asker, FairPlaces


async def hold(
    places: FairPlaces, asker: Asker, name: str, done: list[str], count: int = 1
) -> None:
    async with places.taken(asker, count):
        await asyncio.sleep(0)
    done.append(name)


async def in_turn(asked: dict[str, list[tuple[str, int, int]]], places: int = 1) -> list[str]:
    """The order in which answers come; by API key the name, number and weight of requests."""
    fair, done = FairPlaces(places), list[str]()
    with ExitStack() as stack:
        requests = [
            (stack.enter_context(fair.asker(key)), *request)
            for key, own in asked.items()
            for request in own
        ]
        async with asyncio.TaskGroup() as group:
            for asker, name, count, weight in requests:
                for _ in range(count):
                    group.create_task(hold(fair, asker, name, done, weight))
    return done


async def test_a_request_of_one_answer_does_not_wait_for_all_of_another_one() -> None:
    done = await in_turn({"a": [("wide", 100, 1), ("small", 1, 1)]})
    assert done.index("small") <= 2
    assert len(done) == 101


async def test_keys_take_turns_however_many_requests_each_has() -> None:
    done = await in_turn({"a": [("many", 4, 1)] * 20, "b": [("few", 4, 1)]})
    assert max(at for at, name in enumerate(done) if name == "few") <= 30, "of 84"


async def test_a_long_answer_takes_as_many_turns_as_several() -> None:
    done = await in_turn({"a": [("long", 8, 4)], "b": [("short", 8, 1)]}, places=4)
    assert max(at for at, name in enumerate(done) if name == "short") <= 10


async def test_places_of_those_that_leave_are_given_to_others() -> None:
    fair, done = FairPlaces(1), list[str]()
    with fair.asker("a") as asker:
        async with fair.taken(asker, 1):
            tasks = [asyncio.create_task(hold(fair, asker, "x", done)) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
        tasks[1].cancel()  # it has its place already
        async with asyncio.timeout(5):
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
    assert done == ["x"]


def test_a_key_has_its_part_of_the_room_and_one_request_of_any_size() -> None:
    admission = Admission(running=256, waiting=256, tokens=100)
    with admission.work("a", keys=2, answers=128, tokens=1600):  # 2048 of 2048
        refused = admission.work("a", keys=2, answers=1, tokens=0)
        with pytest.raises(BusyError, match="2048 of 2048 answers unfinished, and 1 more"), refused:
            pass
        with admission.work("b", keys=2, answers=4096, tokens=0):
            pass
    with admission.work("a", keys=2, answers=1, tokens=0):
        pass
