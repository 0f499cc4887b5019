"""A job is planned from its store only once that has seen what the operator wrote."""

from typing import Any

from rollcall_operator.control.own_writes import LONGEST_WAIT, OwnWrites

KEY, OTHER = ("ns", "a"), ("ns", "b")


class Store:
    """How far watches have come, and which objects they have."""

    def __init__(self) -> None:
        self.now = 100.0
        self.versions = {"pods": 7, "rljobs": 7}
        self.living: set[tuple[str, str, str]] = set()
        self.writes = OwnWrites(
            reached=lambda plural, namespace: self.versions[plural] if namespace == "ns" else 0,
            lives=lambda _key, *identity: identity in self.living,
            clock=lambda: self.now,
        )


def version(number: int) -> Any:
    return {"metadata": {"resourceVersion": str(number)}}


def test_without_writes_nothing_is_waited_for() -> None:
    assert Store().writes.wait(KEY) is None


def test_a_write_is_waited_for_until_its_kind_has_come_so_far() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(9))
    store.writes.wrote(KEY, "pods", version(8))
    store.versions["rljobs"] = 9
    assert store.writes.wait(OTHER) is None
    store.versions["pods"] = 8
    assert store.writes.wait(KEY) == LONGEST_WAIT
    store.versions["pods"] = 9
    assert store.writes.wait(KEY) is None


def test_versions_are_compared_as_numbers() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(10))
    store.versions["pods"] = 9
    assert store.writes.wait(KEY) == LONGEST_WAIT


def test_a_deletion_is_waited_for_until_the_object_is_gone_or_going() -> None:
    store = Store()
    store.living.add(("pods", "p", "uid-1"))
    store.writes.deleted(KEY, "pods", "p", "uid-1")
    assert store.writes.wait(KEY) == LONGEST_WAIT
    store.living = {("pods", "p", "uid-2")}
    assert store.writes.wait(KEY) is None


def test_a_store_that_stays_behind_is_not_waited_for_longer() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(9))
    store.now += LONGEST_WAIT / 2
    assert store.writes.wait(KEY) == LONGEST_WAIT / 2
    store.now += LONGEST_WAIT
    assert store.writes.wait(KEY) == 0.0


def test_after_a_failure_the_job_is_read_live_at_once_and_only_once() -> None:
    store = Store()
    store.writes.doubt(KEY)
    assert store.writes.wait(KEY) == 0.0
    store.writes.read(KEY)
    assert store.writes.wait(KEY) is None


def test_what_a_live_read_has_found_is_waited_for_like_a_write() -> None:
    store = Store()
    store.writes.doubt(KEY)
    store.writes.read(KEY)
    store.writes.wrote(KEY, "pods", version(8))
    assert store.writes.wait(KEY) == LONGEST_WAIT


def test_a_job_that_is_gone_leaves_nothing() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(9))
    store.writes.forget(KEY)
    assert store.writes.wait(KEY) is None


def test_what_was_written_is_known_until_the_store_has_seen_it() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(9))
    assert store.writes.written(KEY, "pods", "9")
    assert not store.writes.written(KEY, "pods", "8"), "somebody else's"
    assert not store.writes.written(KEY, "rljobs", "9")
    assert not store.writes.written(OTHER, "pods", "9")
    store.versions["pods"] = 9
    assert store.writes.wait(KEY) is None
    assert not store.writes.written(KEY, "pods", "9")


def test_a_job_that_was_not_planned_for_its_writes_is_planned_once_they_are_seen() -> None:
    store = Store()
    store.writes.wrote(KEY, "pods", version(9))
    assert not store.writes.is_waited_for(KEY), "nothing has asked for a plan"
    store.writes.wait(KEY)
    assert store.writes.is_waited_for(KEY)
    assert not store.writes.is_waited_for(OTHER)
