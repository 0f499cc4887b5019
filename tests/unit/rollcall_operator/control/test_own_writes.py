"""A job is planned from its store only with what the operator has written and deleted."""

from typing import TYPE_CHECKING, Any

import pytest

from rollcall_operator.control.own_writes import LONGEST_WAIT, OwnWrites
from rollcall_operator.kube.resources import PODS, Resource

if TYPE_CHECKING:
    from rollcall_operator.plan.model import JobKey

KEY, OTHER = ("ns", "a"), ("ns", "b")
POD = ("pods", "p", "uid-1")


class Store:
    """What it was given, and which objects it has."""

    def __init__(self) -> None:
        self.now = 100.0
        self.answers: list[tuple[Resource, Any]] = []
        self.living = {POD}
        self.changed_by_others: list[JobKey] = []
        self.writes = OwnWrites(
            keep_answer=lambda *answer: self.answers.append(answer),
            lives=lambda key, *identity: key == KEY and identity in self.living,
            changed_by_others=self.changed_by_others.append,
            clock=lambda: self.now,
        )


def test_without_writes_nothing_is_waited_for() -> None:
    assert Store().writes.wait(KEY) is None


def test_what_was_written_is_in_the_store_at_once() -> None:
    store = Store()
    store.writes.wrote(PODS, {"metadata": {"resourceVersion": "9"}})
    assert store.answers == [(PODS, {"metadata": {"resourceVersion": "9"}})]
    assert store.writes.wait(KEY) is None


def test_a_deletion_is_waited_for_until_the_object_is_gone_or_going() -> None:
    store = Store()
    store.writes.deleted(KEY, *POD)
    store.writes.deleted(OTHER, *POD)
    assert store.writes.wait(KEY) == LONGEST_WAIT
    assert store.writes.wait(OTHER) is None
    store.living = {("pods", "p", "uid-2")}
    assert store.writes.wait(KEY) is None


def test_a_store_that_stays_behind_is_not_waited_for_longer() -> None:
    store = Store()
    store.writes.deleted(KEY, *POD)
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


def test_what_a_live_read_no_longer_finds_is_waited_for() -> None:
    store = Store()
    store.writes.doubt(KEY)
    store.now += 10
    store.writes.read(KEY)
    store.writes.deleted(KEY, *POD)
    assert store.writes.wait(KEY) == LONGEST_WAIT


def test_a_job_that_is_gone_leaves_nothing() -> None:
    store = Store()
    store.writes.deleted(KEY, *POD)
    store.writes.forget(KEY)
    assert store.writes.wait(KEY) is None


def test_a_job_that_was_not_planned_for_its_deletions_is_planned_once_they_are_seen() -> None:
    store = Store()
    store.writes.deleted(KEY, *POD)
    assert not store.writes.is_waited_for(KEY), "nothing has asked for a plan"
    store.writes.wait(KEY)
    assert store.writes.is_waited_for(KEY)
    assert not store.writes.is_waited_for(OTHER)


def written(version: str) -> Any:
    return {"metadata": {"resourceVersion": version}}


def test_what_is_reported_before_its_answer_is_an_own_write() -> None:
    store = Store()
    assert not store.writes.may_be_own(KEY, "pods", "9"), "the job is not being written"
    with store.writes.writing(KEY):
        assert not store.writes.may_be_own(OTHER, "pods", "9")
        assert store.writes.may_be_own(KEY, "pods", "9")
        store.writes.wrote(PODS, written("9"))
        store.writes.wrote(PODS, written("10"))
    assert store.changed_by_others == []
    assert not store.writes.may_be_own(KEY, "pods", "11")


def test_what_is_reported_meanwhile_and_never_answered_is_a_write_of_others() -> None:
    store = Store()
    with store.writes.writing(KEY):
        store.writes.may_be_own(KEY, "pods", "9")
        store.writes.may_be_own(KEY, "services", "10")
        store.writes.wrote(PODS, written("9"))
        store.writes.wrote(PODS, written("10"))
        assert store.changed_by_others == [], "not before all answers are there"
    assert store.changed_by_others == [KEY]


def test_what_was_answered_before_it_is_reported_has_a_change_of_others_in_it() -> None:
    store = Store()
    with store.writes.writing(KEY):
        store.writes.wrote(PODS, written("9"))
        assert not store.writes.may_be_own(KEY, "pods", "9")
        assert store.writes.may_be_own(KEY, "services", "9"), "of another kind"


def test_what_is_reported_while_a_write_fails_is_planned_for() -> None:
    store = Store()

    def write() -> None:
        with store.writes.writing(KEY):
            store.writes.may_be_own(KEY, "pods", "9")
            raise ValueError("the answer is lost")

    with pytest.raises(ValueError, match="lost"):
        write()
    assert store.changed_by_others == [KEY]
