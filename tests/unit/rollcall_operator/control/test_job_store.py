"""What watches report is found by job, and nothing of it is lost or mixed up."""

from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_operator.control.job_store import CHILDREN, KINDS, JobStore, job_of, keep
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan.pod_facts import pod_facts

KEY = ("ns", "a")


def thing(name: str, *, job: str = "a", uid: str = "uid-1", **more: Any) -> Any:
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": uid,
        "resourceVersion": "5",
        "labels": {labels.JOB: job},
    }
    return {"metadata": metadata | more.pop("metadata", {}), **more}


def pool(name: str, job: str) -> Any:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": "uid-p", "resourceVersion": "5"},
        "spec": {"jobRef": {"name": job}},
    }


def test_an_object_is_of_the_job_that_it_is_or_names_or_is_labelled_with() -> None:
    assert job_of(RL_JOBS, thing("j", job="other")) == ("ns", "j")
    assert job_of(ROLLOUT_POOLS, pool("p", "a")) == KEY
    assert job_of(PODS, thing("x")) == KEY
    assert job_of(PODS, {"metadata": {"namespace": "ns", "name": "x"}}) is None
    assert job_of(ROLLOUT_POOLS, {"metadata": {"namespace": "ns", "name": "p"}}) is None


def test_objects_come_back_by_kind_and_name_as_they_were_but_for_their_managed_fields() -> None:
    store = JobStore()
    for resource in KINDS:
        for name in ("z", "b"):
            body = pool(name, "a") if resource == ROLLOUT_POOLS else thing(name, spec={"n": name})
            body["metadata"]["managedFields"] = [{"manager": "m"}]
            if resource != RL_JOBS or name == "b":
                found = (
                    body
                    if resource != RL_JOBS
                    else {**body, "metadata": {**body["metadata"], "name": "a"}}
                )
                store.change(None, keep(resource, found))
    objects = store.objects(KEY)
    assert objects.job == {
        "metadata": thing("a")["metadata"],
        "spec": {"n": "b"},
        "apiVersion": RL_JOBS.api_version,
        "kind": "RLJob",
    }
    assert [each["metadata"]["name"] for each in objects.pools] == ["b", "z"]
    assert [(each["kind"], each["metadata"]["name"]) for each in objects.children] == [
        (resource.kind, name) for resource in CHILDREN for name in ("b", "z")
    ]
    assert objects.pods == (pod_facts(thing("b")), pod_facts(thing("z")))
    assert store.objects(("other", "a")) == JobStore().objects(KEY)


def test_an_object_that_changes_or_goes_is_so_in_its_job_and_no_other() -> None:
    store = JobStore()
    first, second = keep(STATEFUL_SETS, thing("s")), keep(DEPLOYMENTS, thing("s"))
    store.change(None, first)
    store.change(None, second)
    moved = keep(STATEFUL_SETS, thing("s", job="b"))
    store.change(first, moved)
    assert [each["kind"] for each in store.objects(KEY).children] == ["Deployment"]
    assert [each["kind"] for each in store.objects(("ns", "b")).children] == ["StatefulSet"]
    store.change(second, None)
    assert store.objects(KEY).children == ()


def test_nothing_is_kept_for_a_job_without_objects() -> None:
    store = JobStore()
    kept = keep(PODS, thing("p"))
    store.change(None, kept)
    store.change(kept, None)
    assert store._jobs == {}


def test_an_object_lives_until_its_deletion_begins_or_another_has_its_name() -> None:
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    for resource in (PODS, DEPLOYMENTS):
        store = JobStore()
        identity = (resource.plural, "x")
        assert not store.lives(KEY, *identity, "uid-1")
        kept = keep(resource, thing("x"))
        store.change(None, kept)
        assert store.lives(KEY, *identity, "uid-1")
        assert not store.lives(KEY, *identity, "uid-2")
        assert store.identities(KEY) == {(*identity, "uid-1")}
        store.change(kept, keep(resource, thing("x", metadata=going)))
        assert not store.lives(KEY, *identity, "uid-1")


@pytest.mark.parametrize("resource", KINDS)
def test_a_newer_version_of_the_same_is_no_difference_to_planning(
    resource: Resource,
) -> None:
    newer = {"resourceVersion": "6", "managedFields": [{"manager": "m"}]}
    before = keep(resource, thing("x", spec={"n": 1}, status={"replicas": 1}))
    after = keep(resource, thing("x", spec={"n": 1}, status={"replicas": 1}, metadata=newer))
    assert not after.differs_from(before)
    assert after.differs_from(None)
    store = JobStore()
    store.change(None, before)
    store.change(before, after)
    objects = store.objects(KEY if resource != RL_JOBS else ("ns", "x"))
    if resource == PODS:
        assert [pod.version for pod in objects.pods] == ["6"], "deletions go by it"
    elif resource != ROLLOUT_POOLS:
        (kept,) = (objects.job,) if resource == RL_JOBS else objects.children
        assert kept is not None
        assert kept["metadata"]["resourceVersion"] == "6", "writes go by it"


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"spec": {"n": 2}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        ({"status": {"replicas": 2}}, True),
        ({"status": {"replicas": 1, "observedGeneration": 2}}, True),
        ({"status": {"replicas": 1, "conditions": [{"type": "ReplicaFailure"}]}}, True),
        ({"status": {"replicas": 1, "readyReplicas": 1}}, False),
        ({"status": {"replicas": 1, "conditions": [{"type": "Progressing"}]}}, False),
    ],
)
def test_of_a_childs_status_only_what_planning_reads_makes_a_difference(
    change: dict[str, Any], differs: bool
) -> None:
    before = keep(DEPLOYMENTS, thing("x", spec={"n": 1}, status={"replicas": 1}))
    base: dict[str, Any] = {"spec": {"n": 1}, "status": {"replicas": 1}}
    after = keep(DEPLOYMENTS, thing("x", **(base | change)))
    assert after.differs_from(before) == differs


def test_contents_change_with_all_but_status_and_version() -> None:
    def contents(**more: Any) -> object:
        store = JobStore()
        store.change(None, keep(DEPLOYMENTS, thing("x", **more)))
        return store.objects(KEY).contents

    same = contents(spec={"n": 1})
    assert (
        contents(spec={"n": 1}, status={"replicas": 3}, metadata={"resourceVersion": "9"}) == same
    )
    assert contents(spec={"n": 2}) != same
    assert contents(spec={"n": 1}, metadata={"labels": {labels.JOB: "a", "x": "y"}}) != same


@pytest.mark.parametrize("resource", [ROLLOUT_POOLS, PODS, STATEFUL_SETS])
def test_what_names_a_job_of_another_namespace_is_of_none_there(resource: Resource) -> None:
    found = pool("p", "a") if resource == ROLLOUT_POOLS else thing("p")
    found["metadata"]["namespace"] = "elsewhere"
    found["spec"] = {"containers": []} | found.get("spec", {})
    store = JobStore()
    store.change(None, keep(resource, found))
    of_job = store.objects(KEY)
    assert (of_job.pools, of_job.pods, of_job.children) == ((), (), ())
