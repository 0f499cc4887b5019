"""A StatefulSet's pods: their names, the order in which they come and go, and their claims."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall_local.controllers.changes import is_terminating
from rollcall_local.controllers.stateful_set import REVISION, plan
from tests.unit.rollcall_local.controllers.pods_of import Cluster, names, owner

PARALLEL, IN_ORDER = "Parallel", "OrderedReady"


def cluster(replicas: int, policy: str = PARALLEL, **spec: Any) -> Cluster:
    """A set none of whose pods is there yet."""
    return Cluster(plan, owner("StatefulSet", "db", replicas, podManagementPolicy=policy, **spec))


def settled(replicas: int, policy: str = PARALLEL, **spec: Any) -> Cluster:
    """A set whose pods are all ready."""
    made = cluster(replicas, policy, **spec)
    made.settle()
    return made


def scale(of: Cluster, replicas: int) -> None:
    of.owner["spec"]["replicas"] = replicas


# --- what a pod is ----------------------------------------------------------------------------


def test_a_pod_has_its_number_in_its_name_and_a_host_name() -> None:
    db = cluster(2, serviceName="db-peers")
    pods = db.step().create
    assert names(pods) == ["db-0", "db-1"]
    assert [pod["spec"]["hostname"] for pod in pods] == ["db-0", "db-1"]
    assert {pod["spec"]["subdomain"] for pod in pods} == {"db-peers"}
    labels = pods[1]["metadata"]["labels"]
    assert labels["app"] == "db"
    assert labels["apps.kubernetes.io/pod-index"] == "1"
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-1"


def test_one_pod_is_wanted_if_no_number_is_given() -> None:
    db = cluster(3)
    del db.owner["spec"]["replicas"]
    assert names(db.step().create) == ["db-0"]


def test_the_status_names_the_revision_that_pods_of_its_template_have() -> None:
    db = settled(2, updateStrategy={"type": "OnDelete"})
    db.change_template("two")
    db.end("db-1")
    db.step()
    status = db.step().status
    assert status["updateRevision"] == db.pods["db-1"]["metadata"]["labels"][REVISION]
    assert status["updateRevision"] != db.pods["db-0"]["metadata"]["labels"][REVISION]
    assert (status["replicas"], status["updatedReplicas"], status["readyReplicas"]) == (2, 1, 1)
    assert status["observedGeneration"] == 2


def test_a_pod_gets_a_claim_of_its_own_in_place_of_a_volume_of_that_name() -> None:
    template = {"metadata": {"name": "data", "labels": {"a": "b"}}, "spec": {"size": 1}}
    db = cluster(2, volumeClaimTemplates=[template])
    scratch, data = {"name": "scratch", "emptyDir": {}}, {"name": "data", "emptyDir": {}}
    db.owner["spec"]["template"]["spec"]["volumes"] = [scratch, data]
    changes = db.step()
    assert changes.claims[1] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-db-1", "namespace": "default", "labels": {"a": "b"}},
        "spec": {"size": 1},
    }
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}}
    assert changes.create[1]["spec"]["volumes"] == [scratch, claimed]


# --- how many ---------------------------------------------------------------------------------


def test_in_parallel_all_pods_are_made_at_once() -> None:
    assert names(cluster(3).step().create) == ["db-0", "db-1", "db-2"]


def test_in_parallel_all_pods_above_the_number_end_at_once() -> None:
    db = settled(3)
    scale(db, 1)
    assert names(db.step().delete) == ["db-2", "db-1"]


def test_in_order_a_pod_is_made_once_those_before_it_are_ready() -> None:
    db = cluster(3, IN_ORDER)
    assert names(db.step().create) == ["db-0"]
    assert db.step().create == []
    db.ready("db-0")
    assert names(db.step().create) == ["db-1"]
    db.ready("db-1")
    assert names(db.step().create) == ["db-2"]


def test_in_order_is_how_it_goes_if_nothing_is_said() -> None:
    db = cluster(2)
    del db.owner["spec"]["podManagementPolicy"]
    assert names(db.step().create) == ["db-0"]


def test_in_order_a_gap_is_closed_before_what_comes_after_it() -> None:
    db = settled(2, IN_ORDER)
    scale(db, 3)
    db.end("db-0")
    assert names(db.step().create) == ["db-0"]


def test_in_order_nothing_is_made_while_a_pod_before_it_still_ends() -> None:
    db = settled(1, IN_ORDER)
    scale(db, 2)
    db.pods["db-0"]["metadata"]["deletionTimestamp"] = "soon"
    assert db.step().create == []


def test_in_order_pods_above_the_number_end_one_after_another_from_the_last() -> None:
    db = settled(12, IN_ORDER)
    scale(db, 9)
    assert names(db.step().delete) == ["db-11"]
    assert db.step().delete == []
    db.end("db-11")
    assert names(db.step().delete) == ["db-10"]


def test_in_order_no_pod_ends_while_one_before_it_is_not_ready() -> None:
    db = settled(3, IN_ORDER)
    scale(db, 2)
    db.ready("db-0", is_it=False)
    assert db.step().delete == []


# --- pods that end ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [PARALLEL, IN_ORDER])
def test_a_pod_that_has_ended_for_good_is_deleted_and_made_again(policy: str) -> None:
    db = settled(2, policy)
    db.fail("db-0")
    changes = db.step()
    assert (names(changes.delete), changes.create) == (["db-0"], [])
    assert db.step().delete == []
    db.end("db-0")
    assert names(db.step().create) == ["db-0"]


def test_a_pod_that_was_deleted_is_made_again_once_it_has_ended() -> None:
    db = settled(2)
    db.pods["db-1"]["metadata"]["deletionTimestamp"] = "soon"
    assert db.step().create == []
    db.end("db-1")
    assert names(db.step().create) == ["db-1"]


# --- from one template to another -------------------------------------------------------------


def test_on_delete_pods_keep_their_template_until_they_are_deleted() -> None:
    db = settled(2, updateStrategy={"type": "OnDelete"})
    db.change_template("two")
    assert db.step().delete == []
    db.end("db-0")
    (again,) = db.step().create
    assert again["spec"]["containers"][0]["image"] == "two"


@pytest.mark.parametrize("policy", [PARALLEL, IN_ORDER])
def test_an_update_goes_from_the_last_pod_to_the_first_and_waits_for_each(policy: str) -> None:
    db = settled(3, policy)
    db.change_template("two")
    order = []
    for _ in range(3):
        (gone,) = names(db.step().delete)
        order.append(gone)
        assert db.step().delete == []  # until it has ended
        db.end(gone)
        assert names(db.step().create) == [gone]
        assert db.step().delete == []  # until it is ready
        db.ready(gone)
    assert order == ["db-2", "db-1", "db-0"]
    assert db.step().delete == []


def test_an_update_does_not_wait_for_an_old_pod_that_is_not_ready() -> None:
    db = settled(2)
    db.change_template("two")
    db.ready("db-1", is_it=False)
    assert names(db.step().delete) == ["db-1"]


def test_in_order_an_update_begins_once_all_pods_are_ready() -> None:
    db = settled(2, IN_ORDER)
    db.change_template("two")
    db.ready("db-0", is_it=False)
    assert db.step().delete == []
    db.ready("db-0")
    assert names(db.step().delete) == ["db-1"]


def test_an_update_waits_for_pods_above_the_number_to_end() -> None:
    db = settled(2)
    scale(db, 1)
    db.change_template("two")
    assert names(db.step().delete) == ["db-1"]
    assert db.step().delete == []
    db.end("db-1")
    assert names(db.step().delete) == ["db-0"]


# --- whatever happens -------------------------------------------------------------------------

EVENTS = (
    "ready",
    "not ready",
    "end",
    "fail",
    "delete",
    "scale",
    "template",
    "plan",
    "plan",
    "plan",
)


@settings(max_examples=60, deadline=None)
@given(policy=st.sampled_from([PARALLEL, IN_ORDER]), replicas=st.integers(0, 5), data=st.data())
def test_whatever_happens_no_name_is_used_twice_and_all_are_there_in_the_end(
    policy: str, replicas: int, data: st.DataObject
) -> None:
    db = cluster(replicas, policy)
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=20)):
        happen(event, db, data)
        there = set(db.pods)
        wanted = {f"db-{number}" for number in range(db.owner["spec"]["replicas"])}
        changes = db.step()  # asserts that no name is used twice
        assert set(db.pods) <= there | wanted
        if policy == IN_ORDER:
            assert len(changes.create) + len(changes.delete) <= 1
    db.settle()
    assert sorted(db.pods) == [f"db-{number}" for number in range(db.owner["spec"]["replicas"])]
    assert len({pod["metadata"]["labels"][REVISION] for pod in db.pods.values()}) <= 1


def happen(event: str, db: Cluster, data: st.DataObject) -> None:
    """One thing that is not the controller's doing."""
    if event == "scale":
        scale(db, data.draw(st.integers(0, 5)))
    elif event == "template":
        db.change_template(data.draw(st.sampled_from(["one", "two", "three"])))
    elif event != "plan" and db.pods:
        name = data.draw(st.sampled_from(sorted(db.pods)))
        if event == "end":
            db.end(name)
        elif event == "fail":
            db.fail(name)
        elif event == "delete":
            db.pods[name]["metadata"]["deletionTimestamp"] = "soon"
        elif not is_terminating(db.pods[name]):
            db.ready(name, is_it=event == "ready")
