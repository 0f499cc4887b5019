"""What `rollcall describe` tells of a job."""

import io
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from rollcall_cli.job_description import read_description
from rollcall_cli.screens import description_screen
from rollcall_operator.kube.resources import PODS, Resource

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

LABELS = {"rollcall.dev/role": "trainer"}


def pod(name: str, status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "labels": LABELS, **metadata}, "status": status}


def event(about: str, at: str, **more: Any) -> dict[str, Any]:
    rest = {"type": "Normal", "reason": "Told", "note": f"of {about}", "eventTime": at}
    return {"regarding": {"uid": about, "name": about}, **rest, **more}


class Cluster:
    """One job."""

    def __init__(self, pods: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
        self._pods, self._events = pods, events

    async def get(self, _: Resource, **__: str) -> dict[str, Any]:
        ready = {
            "type": "TrainerReady",
            "status": "False",
            "reason": "Starting",
            "message": "it is",
        }
        status = {"phase": "Starting", "conditions": [ready]}
        return {"metadata": {"uid": "job"}, "status": status}

    async def list(self, resource: Resource, **_: str) -> list[dict[str, Any]]:
        return self._pods if resource == PODS else self._events


async def described(
    pods: list[dict[str, Any]], events: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    client = cast("KubeClient", Cluster(pods, events or []))
    return await read_description(client, namespace="team", name="reverse")


async def test_a_pod_says_how_its_container_ended() -> None:
    ended = {"reason": "Error", "message": "no reward\nTraceback", "exitCode": 1}
    container = {"restartCount": 2, "state": {"running": {}}, "lastState": {"terminated": ended}}
    found = await described([pod("a", {"phase": "Running", "containerStatuses": [container]})])
    (row,) = found["pods"]
    assert (row["phase"], row["restarts"], row["ready"]) == ("Running", 2, False)
    assert row["says"] == "Error: no reward"


async def test_a_pod_says_why_it_has_no_place() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "Insufficient memory"}
    found = await described([pod("a", {"phase": "Pending", "conditions": [condition]})])
    assert found["pods"][0]["says"] == "Insufficient memory"


async def test_events_are_those_of_the_job_and_its_pods_the_oldest_first() -> None:
    bumped = event("a", "2026-11-28T08:00:00Z", series={"count": 3, "lastObservedTime": "Z"})
    others = event("b", "2026-11-28T08:00:02Z")
    found = await described([pod("a", {})], [bumped, event("job", "2026-11-28T08:00:01Z"), others])
    assert [(each["about"], each["count"]) for each in found["events"]] == [("job", 1), ("a", 3)]


async def test_a_pod_that_is_deleted_is_terminating() -> None:
    found = await described([pod("a", {"phase": "Running"}, deletionTimestamp="now")])
    assert found["pods"][0]["phase"] == "Terminating"


async def test_the_screen_has_a_table_for_each_or_says_that_there_is_none() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(description_screen(await described([pod("a", {})]), now=0.0))
    text = cast("io.StringIO", console.file).getvalue()
    assert "team/reverse: Starting" in text
    assert "TrainerReady" in text
    assert "There are no events." in text
