"""What a watch tells: each change once and in order, or that it has to list again."""

import asyncio

import pytest

from rollcall_local.api_server.change_log import MOST_AT_ONCE, REMEMBERED, ChangeLog, ServedWatch
from rollcall_local.api_server.errors import ForgottenVersionError


def found(name: str, version: int, *, wanted: bool = True) -> dict[str, object]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "wanted": wanted}


def watch(log: ChangeLog, since: int | None = None) -> ServedWatch:
    return ServedWatch(
        log,
        lambda plural, body: plural == "pods" and bool(body["wanted"]),
        log.version if since is None else since,
    )


def taken(watching: ServedWatch) -> list[tuple[str, str]]:
    return [
        (
            event.type,
            f"{event.object['metadata']['name']}@{event.object['metadata']['resourceVersion']}",
        )
        for event in watching.take()
    ]


def test_a_watch_has_what_came_changed_and_went_since_it_began() -> None:
    log = ChangeLog(7)
    log.add("pods", None, found("early", 8))
    watching = watch(log)
    log.add("pods", None, found("p", 9))
    log.add("pods", found("p", 9), found("p", 10))
    log.add("nodes", None, found("n", 11))
    log.add("pods", found("p", 10), None)
    assert taken(watching) == [("ADDED", "p@9"), ("MODIFIED", "p@10"), ("DELETED", "p@12")]
    assert watching.since == log.version == 12
    assert taken(watching) == []


def test_a_watch_can_begin_at_an_earlier_version() -> None:
    log = ChangeLog(1)
    for version in (2, 3, 4):
        log.add("pods", None, found(f"p{version}", version))
    assert taken(watch(log, since=2)) == [("ADDED", "p3@3"), ("ADDED", "p4@4")]


def test_an_object_that_is_no_longer_wanted_is_deleted_for_the_watch_as_it_was() -> None:
    log = ChangeLog(1)
    watching = watch(log)
    log.add("pods", found("p", 1), found("p", 2, wanted=False))
    (event,) = watching.take()
    assert (event.type, event.object["wanted"]) == ("DELETED", True)
    assert event.object["metadata"]["resourceVersion"] == "2"


def test_an_object_that_begins_to_be_wanted_is_new_for_the_watch() -> None:
    log = ChangeLog(1)
    watching = watch(log)
    log.add("pods", found("p", 1, wanted=False), found("p", 2))
    assert taken(watching) == [("ADDED", "p@2")]


def test_an_object_that_was_never_wanted_is_left_out() -> None:
    log = ChangeLog(1)
    watching = watch(log)
    log.add("pods", None, found("p", 2, wanted=False))
    log.add("pods", found("p", 2, wanted=False), found("p", 3, wanted=False))
    log.add("pods", found("p", 3, wanted=False), None)
    assert taken(watching) == []
    assert watching.since == 4, "but the watch is as far"


def test_a_slow_watch_holds_few_changes_at_a_time_and_misses_none() -> None:
    log = ChangeLog(0)
    watching = watch(log)
    for version in range(1, 2 * MOST_AT_ONCE + 2):
        log.add("pods", None, found("p", version))
    batches = [len(watching.take()) for _ in range(4)]
    assert batches == [MOST_AT_ONCE, MOST_AT_ONCE, 1, 0]


def test_a_watch_that_is_too_far_behind_is_refused() -> None:
    log = ChangeLog(1)
    watching = watch(log)
    for version in range(2, REMEMBERED + 2):
        log.add("pods", None, found("p", version))
    assert len(log.after(1)) == MOST_AT_ONCE, "the oldest is there still"
    log.add("pods", None, found("p", REMEMBERED + 2))
    with pytest.raises(
        ForgottenVersionError, match="resourceVersion 1 is not known here; list again"
    ):
        watching.take()


@pytest.mark.parametrize("since", [6, 8], ids=["before the start", "of the future"])
def test_a_version_of_another_server_is_not_known(since: int) -> None:
    with pytest.raises(ForgottenVersionError):
        watch(ChangeLog(7), since).take()


async def test_waiting_ends_with_the_next_change() -> None:
    log = ChangeLog(1)
    watching = watch(log)
    waiting = asyncio.create_task(watching.wait(60))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.add("pods", None, found("p", 2))
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(watching.wait(60), 1)  # there is something to take still
    watching.take()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watching.wait(60), 0.01)


async def test_waiting_ends_when_nothing_comes() -> None:
    await asyncio.wait_for(watch(ChangeLog(1)).wait(0.01), 1)
