"""What the bench counts of an audit log: one user's requests, each once."""

import json
from pathlib import Path
from typing import Any

import pytest

from hack.bench.operator_load.measured_operator import AuditCounts

OPERATOR = "system:serviceaccount:rollcall-system:rollcall-operator"


def event(verb: str, resource: str, *, user: str = OPERATOR, **more: Any) -> dict[str, Any]:
    about = {"resource": resource, **more.pop("about", {})}
    stage = more.pop("stage", "ResponseComplete")
    return {"verb": verb, "user": {"username": user}, "objectRef": about, "stage": stage}


def counted(tmp_path: Path, *events: dict[str, Any]) -> AuditCounts:
    log = tmp_path / "audit.log"
    log.write_text("".join(json.dumps(each) + "\n" for each in events))
    return AuditCounts(log, user=OPERATOR).read()


def test_writes_and_reads_of_the_user_alone(tmp_path: Path) -> None:
    counts = counted(
        tmp_path,
        event("patch", "rljobs", about={"subresource": "status"}),
        event("create", "pods", about={"subresource": "binding"}),
        event("delete", "pods"),
        event("get", "pods"),
        event("list", "pods"),
        event("watch", "pods"),
        event("patch", "pods", user="somebody"),
    )
    assert (counts.writes(), counts.reads()) == (3, 2)
    assert counts.requests["patch", "rljobs/status"] == 1


@pytest.mark.parametrize("resource", ["leases", "events", "serviceaccounts/token"])
def test_the_lease_events_and_tokens_are_aside(tmp_path: Path, resource: str) -> None:
    counts = counted(tmp_path, event("update", resource), event("get", resource))
    assert (counts.writes(), counts.reads()) == (0, 0)
    assert counts.requests["update", resource] == 1


def test_a_request_is_counted_when_its_answer_is_complete(tmp_path: Path) -> None:
    begun = event("watch", "pods", stage="ResponseStarted")
    assert not counted(tmp_path, begun).requests


def test_a_request_about_no_resource_is_no_error(tmp_path: Path) -> None:
    url = {"verb": "get", "user": {"username": OPERATOR}, "stage": "ResponseComplete"}
    assert counted(tmp_path, url).requests == {("get", "-"): 1}


def test_what_is_appended_is_counted_once(tmp_path: Path) -> None:
    counts = counted(tmp_path, event("patch", "pods"))
    line = json.dumps(event("patch", "pods")) + "\n"
    with (tmp_path / "audit.log").open("a") as log:
        log.write(line + line[:20])
        log.flush()
        assert counts.read().writes() == 2
        log.write(line[20:])
        log.flush()
    assert counts.read().writes() == counts.read().writes() == 3
