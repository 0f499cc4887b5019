"""A job comes from its store without a request, and live from the API server where in doubt."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.api import labels
from rollcall_operator.control.job_reader import (
    PODS_DUE_SECONDS,
    SHARED_SECONDS,
    BehindError,
    JobReader,
    RecentEvents,
)
from rollcall_operator.control.job_store import CHILDREN, KINDS, JobStore, keep
from rollcall_operator.control.own_writes import LONGEST_WAIT, OwnWrites
from rollcall_operator.kube.errors import UnreachableError
from rollcall_operator.kube.resources import (
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan.timestamps import to_time

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient

KEY, NOW = ("ns", "a"), 1_800_000_000.0
OWN = {"namespace": "ns", "labels": {labels.JOB: "a"}, "resourceVersion": "5"}
JOB = {"kind": "RLJob", "metadata": {**OWN, "name": "a", "uid": "uid-a"}}
POOL = {
    "metadata": {"namespace": "ns", "name": "a-cpu", "uid": "uid-p", "resourceVersion": "6"},
    "spec": {"jobRef": {"name": "a"}},
}


def pod(name: str, *, version: str = "5", **status: Any) -> Any:
    return {"metadata": {**OWN, "name": name, "uid": name, "resourceVersion": version}} | {
        "status": status
    }


class Cluster:
    """An API server that counts what it is asked, and a store with what watches have reported."""

    def __init__(self) -> None:
        self.live: dict[str, list[Any]] = {}
        self.asked: dict[str, tuple[str, str]] = {}
        self.store = JobStore()
        self.lost = 0.0
        self.now = NOW
        self.writes = OwnWrites(
            keep_answer=self.watched,
            lives=self.store.lives,
            changed_by_others=lambda _: None,
            clock=lambda: self.now,
        )
        self.reader = JobReader(
            cast("KubeClient", self),
            store=self.store,
            writes=self.writes,
            lost_for=lambda: self.lost,
            clock=lambda: self.now,
        )

    def watched(self, resource: Resource, *objects: Any) -> None:
        for each in objects:
            self.store.change(None, keep(resource, each))

    async def find(self, resource: Any, *, namespace: str, name: str) -> Any:
        assert namespace == "ns"
        self.asked[resource.kind] = (name, "")
        return next(iter(self.live.get(resource.kind, ())), None)

    async def list(
        self, resource: Any, *, namespace: str, labels: str = "", fields: str = ""
    ) -> Any:
        assert namespace == "ns"
        self.asked[resource.kind] = (labels, fields)
        return tuple(self.live.get(resource.kind, ()))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# --- from the store ------------------------------------------------------------------------------


async def test_a_job_in_its_store_is_read_without_a_request(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.watched(ROLLOUT_POOLS, POOL)
    cluster.watched(PODS, pod("p"))
    observed = await cluster.reader.read(KEY)
    assert (observed.job_uid, len(observed.pools), len(observed.pods)) == ("uid-a", 1, 1)
    assert (await cluster.reader.read(("ns", "b"))).gone
    assert not cluster.asked


async def test_until_the_store_has_seen_a_deletion_the_job_is_not_read(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.watched(PODS, pod("p"))
    cluster.writes.deleted(KEY, "pods", "p", "p")
    with pytest.raises(BehindError):
        await cluster.reader.read(KEY)
    cluster.store.change(keep(PODS, pod("p")), None)
    await cluster.reader.read(KEY)
    assert not cluster.asked


# --- live ----------------------------------------------------------------------------------------


async def test_a_store_that_stays_behind_is_read_past(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.live["RLJob"] = [JOB]
    cluster.watched(PODS, pod("p"))
    cluster.writes.deleted(KEY, "pods", "p", "p")
    cluster.now += LONGEST_WAIT
    assert (await cluster.reader.read(KEY)).job == JOB
    assert set(cluster.asked) == {resource.kind for resource in KINDS}


async def test_after_a_failed_write_the_job_is_read_live_once(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.live["RLJob"] = [JOB]
    cluster.writes.doubt(KEY)
    await cluster.reader.read(KEY)
    assert "RLJob" in cluster.asked
    cluster.asked.clear()
    await cluster.reader.read(KEY)
    assert not cluster.asked


async def test_while_watches_are_lost_jobs_are_read_live(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.lost = LONGEST_WAIT / 2
    await cluster.reader.read(KEY)
    assert not cluster.asked
    cluster.lost = LONGEST_WAIT * 2
    assert (await cluster.reader.read(KEY)).gone, "the watch has missed its end"


async def test_a_pool_whose_job_the_store_lacks_is_no_reason_to_believe_that_it_is_gone(
    cluster: Cluster,
) -> None:
    cluster.watched(ROLLOUT_POOLS, POOL)
    cluster.live |= {"RLJob": [JOB], "RolloutPool": [POOL]}
    assert (await cluster.reader.read(KEY)).job == JOB


async def test_the_store_has_what_was_read_live_and_must_lose_the_rest(cluster: Cluster) -> None:
    cluster.watched(RL_JOBS, JOB)
    cluster.watched(PODS, pod("gone"))
    cluster.live |= {"RLJob": [JOB], "Pod": [pod("new", version="6")]}
    cluster.writes.doubt(KEY)
    assert [each.name for each in (await cluster.reader.read(KEY)).pods] == ["new"]
    with pytest.raises(BehindError):
        await cluster.reader.read(KEY)
    cluster.store.change(keep(PODS, pod("gone")), None)
    assert [each.name for each in (await cluster.reader.read(KEY)).pods] == ["new"]


async def test_objects_are_selected_by_the_jobs_own_label_and_pools_by_their_job(
    cluster: Cluster,
) -> None:
    cluster.live["RLJob"] = [JOB]
    cluster.writes.doubt(KEY)
    await cluster.reader.read(KEY)
    mine = (f"{labels.JOB}=a", "")
    for resource in (PODS, *CHILDREN):
        assert cluster.asked[resource.kind] == mine, resource.kind
    assert cluster.asked["RLJob"] == ("", "metadata.name=a")
    assert cluster.asked["RolloutPool"] == ("", "spec.jobRef.name=a")
    assert "Secret" not in cluster.asked


# --- events --------------------------------------------------------------------------------------


def stateful_set(created: int, *, age: float = PODS_DUE_SECONDS) -> Any:
    metadata = {**OWN, "name": "a-trainer", "uid": "uid-set"}
    metadata["creationTimestamp"] = to_time(NOW - age)
    body = {"spec": {"replicas": 2}, "status": {"replicas": created}}
    return {"kind": "StatefulSet", "metadata": metadata, **body}


def failed(note: str, seconds: int, *, uid: str = "uid-set") -> Any:
    return {
        "metadata": {"creationTimestamp": to_time(0)},
        "deprecatedLastTimestamp": to_time(NOW - seconds),
        "regarding": {"uid": uid},
        "note": note,
    }


async def test_why_a_stateful_set_lacks_pods_is_read_from_its_last_event(cluster: Cluster) -> None:
    cluster.live["Event"] = [
        failed("before", 90),
        failed("exceeded quota", 9),
        failed("long ago", 9000),
        failed("of another set", 1, uid="another"),
    ]
    cluster.watched(STATEFUL_SETS, stateful_set(1))
    observed = await cluster.reader.read(KEY)
    assert observed.creation_failures == {"StatefulSet/a-trainer": "exceeded quota"}
    assert cluster.asked["Event"] == ("", "reason=FailedCreate")


async def test_what_was_overcome_long_ago_is_no_failure(cluster: Cluster) -> None:
    cluster.live["Event"] = [failed("old", 9000)]
    cluster.watched(STATEFUL_SETS, stateful_set(1))
    assert not (await cluster.reader.read(KEY)).creation_failures
    assert "Event" in cluster.asked


async def test_a_new_stateful_set_has_time_to_create_its_pods(cluster: Cluster) -> None:
    cluster.watched(STATEFUL_SETS, stateful_set(1, age=PODS_DUE_SECONDS - 1))
    await cluster.reader.read(KEY)
    assert not cluster.asked


def bound(uid: str, *, seconds: float) -> Any:
    """A pod that got a node so long ago and has no sandbox yet."""
    when = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_time(NOW - seconds)}
    return {
        "metadata": {**OWN, "name": uid, "uid": uid},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Pending", "conditions": [when]},
    }


async def test_why_volumes_are_not_mounted_is_read_for_all_pods_at_once(cluster: Cluster) -> None:
    cluster.watched(PODS, bound("a", seconds=60), bound("b", seconds=60), bound("c", seconds=1))
    cluster.live["Event"] = [
        failed(note, seconds, uid=uid)
        for uid, note, seconds in (
            ("a", "before", 90),
            ("a", "no secret", 9),
            ("c", "at first", 1),
            ("another job's", "x", 1),
        )
    ]
    observed = await cluster.reader.read(KEY)
    assert {pod.uid: pod.mount_failure for pod in observed.pods} == {
        "a": "no secret",
        "b": "",
        "c": "",
    }
    assert cluster.asked["Event"] == ("", "reason=FailedAttachVolume")


async def test_no_events_are_read_while_pods_only_begin_to_mount(cluster: Cluster) -> None:
    cluster.watched(PODS, bound("a", seconds=1))
    await cluster.reader.read(KEY)
    assert not cluster.asked


async def test_no_events_are_read_while_all_pods_are_there(cluster: Cluster) -> None:
    cluster.watched(STATEFUL_SETS, stateful_set(2))
    await cluster.reader.read(KEY)
    assert not cluster.asked


# --- one LIST of a namespace's events serves all jobs in it for some seconds ----------------------


class EventServer:
    """Answers a LIST with how many there were before it."""

    def __init__(self) -> None:
        self.lists: list[tuple[str, str]] = []
        self.now = 0.0
        self.fails = False
        self.events = RecentEvents(cast("KubeClient", self), clock=lambda: self.now)

    async def list(self, _resource: object, *, namespace: str, fields: str) -> tuple[Any, ...]:
        self.lists.append((namespace, fields))
        await asyncio.sleep(0)
        if self.fails:
            raise UnreachableError("no answer")
        return ({"number": len(self.lists)},)


async def test_jobs_of_a_namespace_share_what_was_read() -> None:
    server = EventServer()
    asked = (server.events.with_reason("a", "FailedMount") for _ in range(20))
    assert await asyncio.gather(*asked) == [({"number": 1},)] * 20
    assert server.lists == [("a", "reason=FailedMount")]


async def test_another_namespace_and_another_reason_are_read_for_themselves() -> None:
    server = EventServer()
    for namespace, reason in (("a", "x"), ("b", "x"), ("a", "y")):
        await server.events.with_reason(namespace, reason)
    assert len(server.lists) == 3


async def test_what_is_old_is_read_again() -> None:
    server = EventServer()
    for server.now in (0.0, SHARED_SECONDS - 1, SHARED_SECONDS):
        answer = await server.events.with_reason("a", "FailedMount")
    assert answer == ({"number": 2},)


async def test_a_failure_is_reported_and_not_remembered() -> None:
    server = EventServer()
    server.fails = True
    with pytest.raises(UnreachableError):
        await server.events.with_reason("a", "FailedMount")
    server.fails = False
    assert await server.events.with_reason("a", "FailedMount") == ({"number": 2},)
