"""A plan is carried out in an order that makes dying, or losing a race, between steps harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.apply import Applier
from rollcall_operator.kube.errors import ConflictError, NotFoundError, RefusedError
from rollcall_operator.plan.model import (
    DeletionCost,
    JobPlan,
    ObjectDeletion,
    ObservedJob,
    PodDeletion,
    ReadinessGatePatch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_operator.control.own_writes import OwnWrites
    from rollcall_operator.kube.client import KubeClient
    from rollcall_operator.kube.event_recorder import EventRecorder
    from rollcall_operator.kube.resources import Resource

JOB = {
    "kind": "RLJob",
    "metadata": {"namespace": "ns", "name": "a", "uid": "uid-a", "resourceVersion": "7"},
    "status": {"epoch": 1},
}
POOL = {
    "kind": "RolloutPool",
    "metadata": {"namespace": "ns", "name": "a-cpu", "uid": "uid-p", "resourceVersion": "3"},
}


WRITTEN = {"metadata": {"resourceVersion": "9"}}


class Calls:
    """Stands in for client, recorder and own writes: records every call in its order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.errors: dict[str, Exception] = {}
        self.reported: list[str] = []
        self.there: dict[str, Any] = {}  # what has the name of a child, by kind

    async def list(self, resource: Any, **details: Any) -> tuple[Any, ...]:
        assert details == {"namespace": "ns", "fields": "metadata.name=a-trainer"}
        return (self.there[resource.kind],) if resource.kind in self.there else ()

    def _record(self, what: str, /, **details: Any) -> None:
        self.made.append((what, details))
        if what in self.errors:
            raise self.errors[what]

    async def patch_status(self, resource: Any, **details: Any) -> Any:
        self._record(f"status of {resource.kind}", **details)
        return WRITTEN

    async def delete(self, resource: Any, **details: Any) -> None:
        self._record(f"delete {resource.kind}", **details)

    async def apply(self, body: Any, *, force: bool, dry_run: bool = False) -> Any:
        self._record(f"apply {body['kind']}", body=body, force=force, dry_run=dry_run)
        return WRITTEN

    async def set_pod_condition(self, **details: Any) -> Any:
        self._record("gate", **details)
        return WRITTEN

    async def set_pod_annotation(self, **details: Any) -> Any:
        self._record("cost", **details)
        return WRITTEN

    def wrote(self, resource: Resource, written: Any) -> None:
        assert written == WRITTEN
        self.reported.append(f"wrote {resource.plural}")

    def deleted(self, key: Any, plural: str, name: str, uid: str) -> None:
        assert key == ("ns", "a")
        self.reported.append(f"deleted {plural} {name} {uid}")

    def doubt(self, key: Any) -> None:
        self.reported.append(f"doubt {key[1]}")

    def record(self, regarding: Any, **details: Any) -> None:
        self._record("event", regarding=regarding, **details)

    def named(self, what: str) -> Sequence[dict[str, Any]]:
        return [details for made, details in self.made if made == what]

    @property
    def names(self) -> Sequence[str]:
        return [name for name, _ in self.made]


async def write(calls: Calls, plan: JobPlan, **details: Any) -> Applier:
    """Both halves of the plan."""
    applier = Applier(
        cast("KubeClient", calls),
        cast("EventRecorder", calls),
        cast("OwnWrites", calls),
        timestamp=lambda: "2026-01-01T00:00:00Z",
        clock=lambda: 0.0,
    )
    observed = ObservedJob(namespace="ns", name="a", now=0.0, job=JOB, **details)
    versions = await applier.write_objects(observed, plan)
    await applier.write_pods_and_pools(observed, plan, versions)
    return applier


def conflict() -> ConflictError:
    return ConflictError(status=409, reason="Conflict", message="", what="write")


def child(kind: str) -> dict[str, Any]:
    named = {"namespace": "ns", "name": "a-trainer", "labels": {"rollcall.dev/job": "a"}}
    return {"kind": kind, "metadata": named}


async def test_what_was_not_seen_before_is_not_taken_from_others() -> None:
    calls = Calls()
    await write(calls, JobPlan(applies=(child("Service"), POOL)), pools=(POOL,))
    assert [call["force"] for call in calls.named("apply Service")] == [False]
    assert [call["force"] for call in calls.named("apply RolloutPool")] == [True]


@pytest.mark.parametrize("labels", [None, {}, {"rollcall.dev/job": "b"}])
async def test_an_object_of_others_with_the_name_of_a_child_stays_as_it_is(
    labels: dict[str, str] | None,
) -> None:
    calls = Calls()
    metadata = {"name": "a-trainer"} | ({} if labels is None else {"labels": labels})
    calls.there["StatefulSet"] = {"metadata": metadata}
    plan = JobPlan(applies=(child("StatefulSet"), child("Service")))
    applier = await write(calls, plan)
    assert calls.names == ["apply Service"]
    found = applier.refusals(("ns", "a"))["StatefulSet/a-trainer"].message
    assert found == "it exists and is no child of this RLJob"


async def test_a_child_that_the_watch_has_not_shown_yet_is_applied() -> None:
    calls = Calls()
    calls.there["StatefulSet"] = child("StatefulSet")
    await write(calls, JobPlan(applies=(child("StatefulSet"),)))
    assert calls.names == ["apply StatefulSet"]


async def test_the_epoch_is_written_over_the_job_that_was_read() -> None:
    calls = Calls()
    await write(calls, JobPlan(job_status={"epoch": 2}))
    (written,) = calls.named("status of RLJob")
    assert written["resource_version"] == "7"
    assert written["patch"] == {"epoch": 2}


async def test_after_a_lost_race_for_the_epoch_nothing_else_is_written() -> None:
    calls = Calls()
    calls.errors["status of RLJob"] = conflict()
    removals = (PodDeletion("p", "uid-1"),)
    with pytest.raises(ConflictError):
        await write(calls, JobPlan(job_status={"epoch": 2}, pod_deletions=removals))
    assert calls.names == ["status of RLJob"]


@pytest.mark.parametrize(("force", "grace"), [(False, None), (True, 0)])
async def test_a_pod_is_deleted_by_its_uid_and_by_force_only_when_planned(
    force: bool, grace: int | None
) -> None:
    calls = Calls()
    await write(calls, JobPlan(pod_deletions=(PodDeletion("p", "uid-1", "5", force=force),)))
    assert calls.named("delete Pod") == [
        {"namespace": "ns", "name": "p", "uid": "uid-1", "version": "5", "grace": grace}
    ]


async def test_whether_to_delete_a_pod_that_has_changed_is_decided_by_what_is_read_live() -> None:
    calls = Calls()
    calls.errors["delete Pod"] = conflict()
    await write(calls, JobPlan(pod_deletions=(PodDeletion("p", "uid-1", "5"),)))
    assert calls.reported == ["doubt a"]


async def test_each_write_is_reported_so_that_none_is_planned_again() -> None:
    calls = Calls()
    plan = JobPlan(
        costs=(DeletionCost("p", "uid-1", "-1"),),
        applies=(POOL,),
        deletes=(ObjectDeletion("RolloutPool", "a-old", "uid-9"),),
        job_status={"epoch": 2},
        pod_deletions=(PodDeletion("p", "uid-1"),),
        gates=(ReadinessGatePatch("q", "uid-2", False, "Stale", "two behind"),),
        pool_statuses={"a-cpu": {"replicas": 2}},
    )
    await write(calls, plan, pools=(POOL,))
    assert calls.reported == [
        "wrote pods",
        "wrote rolloutpools",
        "deleted rolloutpools a-old uid-9",
        "wrote rljobs",
        "deleted pods p uid-1",
        "wrote pods",
        "wrote rolloutpools",
    ]


@pytest.mark.parametrize(
    ("plan", "versions", "again"),
    [
        (JobPlan(applies=(POOL,)), {"RolloutPool/a-cpu": "9"}, 0.0),
        (JobPlan(applies=(POOL,)), {"RolloutPool/a-cpu": "3"}, None),
        (JobPlan(applies=(POOL,)), {"Deployment/a-cpu": "9"}, None),
        (JobPlan(job_status={"epoch": 2}), {}, 0.0),
        (JobPlan(job_status={"epoch": 1, "progress": {"step": 7}}), {}, None),
        (JobPlan(requeue_after=7.0), {}, 7.0),
        (JobPlan(), {}, None),
    ],
    ids=[
        "a pool",
        "an apply without effect",
        "a Deployment",
        "an epoch",
        "a step",
        "a wait",
        "nothing",
    ],
)
async def test_what_was_written_asks_for_another_plan_if_more_may_follow_from_it(
    plan: JobPlan, versions: dict[str, str], again: float | None
) -> None:
    applier = await write(Calls(), JobPlan())
    observed = ObservedJob(namespace="ns", name="a", now=0.0, job=JOB, pools=(POOL,))
    assert applier.next_reconcile(observed, plan, versions) == again


async def test_pods_are_asked_for_once_what_protects_them_is_there() -> None:
    calls = Calls()
    kinds = ("StatefulSet", "NetworkPolicy", "Deployment", "Service", "ConfigMap", "RolloutPool")
    applies = tuple(map(child, kinds))
    await write(calls, JobPlan(applies=applies))
    assert set(calls.names[-2:]) == {"apply StatefulSet", "apply Deployment"}
    assert len(calls.names) == len(kinds)


async def test_a_write_that_failed_is_not_reported() -> None:
    calls = Calls()
    gone = NotFoundError(status=404, reason="NotFound", message="", what="write")
    refused = RefusedError(status=422, reason="Invalid", message="no", what="write")
    calls.errors |= {
        "cost": gone,
        "gate": gone,
        "delete Pod": refused,
        "apply RolloutPool": refused,
    }
    plan = JobPlan(
        costs=(DeletionCost("p", "uid-1", "-1"),),
        applies=(POOL,),
        pod_deletions=(PodDeletion("p", "uid-1"),),
        gates=(ReadinessGatePatch("p", "uid-1", True, "InSync", ""),),
    )
    await write(calls, plan)
    assert calls.reported == []


async def test_an_object_is_deleted_by_its_uid() -> None:
    calls = Calls()
    await write(calls, JobPlan(deletes=(ObjectDeletion("RolloutPool", "a-old", "uid-9"),)))
    assert calls.named("delete RolloutPool") == [
        {"namespace": "ns", "name": "a-old", "uid": "uid-9"}
    ]


async def test_gates_and_costs_are_of_the_pod_that_was_seen() -> None:
    calls = Calls()
    plan = JobPlan(
        costs=(DeletionCost("p", "uid-1", "-1"),),
        gates=(ReadinessGatePatch("q", "uid-2", False, "Stale", "two behind"),),
    )
    await write(calls, plan)
    (cost,) = calls.named("cost")
    assert (cost["name"], cost["uid"], cost["value"]) == ("p", "uid-1", "-1")
    (gate,) = calls.named("gate")
    assert (gate["name"], gate["uid"]) == ("q", "uid-2")
    assert gate["condition"]["status"] == "False"
    assert (gate["condition"]["reason"], gate["condition"]["message"]) == ("Stale", "two behind")


@pytest.mark.parametrize(
    "error", [conflict(), NotFoundError(status=404, reason="NotFound", message="", what="write")]
)
async def test_a_pod_that_is_gone_or_another_by_now_stops_nothing(error: Exception) -> None:
    calls = Calls()
    calls.errors |= {"cost": error, "gate": error}
    plan = JobPlan(
        costs=(DeletionCost("p", "uid-1", "-1"),),
        gates=(ReadinessGatePatch("p", "uid-1", True, "InSync", ""),),
        job_status={"epoch": 2},
    )
    await write(calls, plan)
    assert calls.names == ["cost", "status of RLJob", "gate"]


async def test_a_pools_status_goes_by_the_version_that_its_apply_has_made() -> None:
    calls = Calls()
    plan = JobPlan(applies=(POOL,), pool_statuses={"a-cpu": {"replicas": 2}})
    await write(calls, plan, pools=(POOL,))
    (written,) = calls.named("status of RolloutPool")
    assert written["resource_version"] == "9"


async def test_a_pools_status_goes_by_the_version_that_was_read() -> None:
    calls = Calls()
    await write(calls, JobPlan(pool_statuses={"a-cpu": {"replicas": 2}}), pools=(POOL,))
    (written,) = calls.named("status of RolloutPool")
    assert written["resource_version"] == "3"


async def test_a_refused_child_is_remembered_and_in_nobodys_way() -> None:
    calls = Calls()
    calls.errors["apply Service"] = RefusedError(
        status=422, reason="Invalid", message="no such port", what="apply"
    )
    applier = await write(
        calls, JobPlan(applies=(child("Service"), POOL), job_status={"epoch": 2}), pools=(POOL,)
    )
    assert calls.names == ["apply Service", "apply RolloutPool", "status of RLJob"]
    assert applier.refusals(("ns", "a"))["Service/a-trainer"].message == "no such port"
