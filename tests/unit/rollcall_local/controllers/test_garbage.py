"""Which objects go because their owners are gone."""

from typing import Any

from rollcall_local.controllers.garbage import orphans


def found(uid: str, *owners: str) -> dict[str, Any]:
    """An object that names owners by their uids."""
    return {"metadata": {"uid": uid, "ownerReferences": [{"uid": owner} for owner in owners]}}


def uids(objects: list[dict[str, Any]]) -> list[str]:
    return [body["metadata"]["uid"] for body in objects]


def test_an_object_whose_owner_is_gone_is_an_orphan() -> None:
    assert uids(orphans([found("pod", "set")])) == ["pod"]


def test_an_object_whose_owner_is_there_is_none() -> None:
    assert orphans([found("set"), found("pod", "set")]) == []


def test_an_object_that_names_no_owner_is_none() -> None:
    assert orphans([{"metadata": {"uid": "job"}}, found("set")]) == []


def test_one_owner_of_several_is_enough() -> None:
    assert orphans([found("job"), found("secret", "gone", "job")]) == []


def test_what_an_orphan_owns_follows_once_it_is_gone() -> None:
    there = [found("set", "job"), found("pod", "set")]
    assert uids(orphans(there)) == ["set"]
    assert uids(orphans(there[1:])) == ["pod"]


def test_an_owner_of_the_same_name_that_was_made_since_is_another() -> None:
    assert uids(orphans([found("set-2"), found("pod", "set-1")])) == ["pod"]
