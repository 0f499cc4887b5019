"""A Deployment's pods: how many, which go first, and how one template follows another."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall_local.controllers import deployment
from rollcall_local.controllers.changes import Object, is_terminating
from rollcall_local.controllers.deployment import DELETION_COST, plan
from tests.unit.rollcall_local.controllers.pods_of import Cluster, names, owner


def cluster(replicas: int, **rolling: Any) -> Cluster:
    """A Deployment whose pods are all ready; `rolling` are limits of its updates."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    made = Cluster(plan, owner("Deployment", "web", replicas, strategy=strategy))
    made.settle()
    return made


def scale(of: Cluster, replicas: int) -> None:
    of.owner["spec"]["replicas"] = replicas


def test_it_makes_as_many_pods_as_are_wanted_by_its_template() -> None:
    made = Cluster(plan, owner("Deployment", "web", 3)).step().create
    assert len(set(names(made))) == 3
    assert {pod["metadata"]["labels"]["app"] for pod in made} == {"web"}
    assert {pod["spec"]["containers"][0]["image"] for pod in made} == {"one"}
    assert [pod["metadata"]["ownerReferences"][0]["uid"] for pod in made] == ["uid-web"] * 3


def test_one_pod_is_wanted_if_no_number_is_given() -> None:
    web = owner("Deployment", "web", 1)
    del web["spec"]["replicas"]
    assert len(plan(web, []).create) == 1


def test_pods_of_others_do_not_count() -> None:
    other = Cluster(plan, owner("Deployment", "other", 2))
    other.settle()
    foreign = list(other.pods.values())
    assert len(plan(owner("Deployment", "web", 2), foreign).create) == 2
    for pod in foreign:  # one that names the Deployment as an owner, and is controlled by another
        pod["metadata"]["ownerReferences"].append({"uid": "uid-web", "controller": False})
    assert len(plan(owner("Deployment", "web", 2), foreign).create) == 2


def test_more_pods_are_added_and_the_others_stay() -> None:
    web = cluster(2)
    before = set(web.pods)
    scale(web, 4)
    web.settle()
    assert len(web.pods) == 4
    assert before < set(web.pods)


def test_scaling_to_nothing_deletes_all() -> None:
    web = cluster(3)
    scale(web, 0)
    web.settle()
    assert web.pods == {}


def test_its_status_counts_pods_that_are_ready_and_those_of_its_template() -> None:
    web = cluster(2)
    web.change_template("two")
    web.ready(next(iter(web.pods)), is_it=False)
    assert web.step().status == {
        "observedGeneration": 2,
        "replicas": 2,
        "updatedReplicas": 0,
        "readyReplicas": 1,
        "availableReplicas": 1,
    }


# --- who goes first ---------------------------------------------------------------------------


def gone_after_scaling_to(replicas: int, of: Cluster) -> list[str]:
    scale(of, replicas)
    return names(of.step().delete)


def test_of_pods_alike_the_newest_goes() -> None:
    web = cluster(3)
    assert gone_after_scaling_to(2, web) == [list(web.pods)[-1]]


def test_a_pod_of_a_lower_deletion_cost_goes_before_newer_ones() -> None:
    web = cluster(3)
    first = next(iter(web.pods))
    web.pods[first]["metadata"]["annotations"] = {DELETION_COST: "-1"}
    assert gone_after_scaling_to(2, web) == [first]


def test_a_cost_that_is_no_number_counts_as_none() -> None:
    web = cluster(2)
    first, last = web.pods
    web.pods[first]["metadata"]["annotations"] = {DELETION_COST: "cheap"}
    assert gone_after_scaling_to(1, web) == [last]


def test_a_pod_that_is_not_ready_goes_before_cheaper_ones() -> None:
    web = cluster(3)
    first, second, _ = web.pods
    web.ready(first, is_it=False)
    web.pods[second]["metadata"]["annotations"] = {DELETION_COST: "-1"}
    assert gone_after_scaling_to(2, web) == [first]


def test_a_pod_that_has_not_begun_goes_before_one_that_is_not_ready() -> None:
    web = cluster(3)
    first, second, _ = web.pods
    web.ready(second, is_it=False)
    web.pods[first]["status"] = {"phase": "Pending"}
    assert gone_after_scaling_to(2, web) == [first]


def test_a_pod_without_a_node_goes_before_all_others() -> None:
    web = cluster(3)
    first, second, _ = web.pods
    for name in (first, second):
        web.pods[name]["status"] = {"phase": "Pending"}
    del web.pods[first]["spec"]["nodeName"]
    assert gone_after_scaling_to(2, web) == [first]


# --- pods that end ----------------------------------------------------------------------------


def test_a_pod_that_was_deleted_is_replaced_while_it_still_ends() -> None:
    web = cluster(2)
    web.pods[next(iter(web.pods))]["metadata"]["deletionTimestamp"] = "soon"
    changes = web.step()
    assert (len(changes.create), changes.delete) == (1, [])


def test_a_pod_that_has_failed_is_replaced() -> None:
    web = cluster(2)
    web.fail(next(iter(web.pods)))
    changes = web.step()
    assert (len(changes.create), changes.delete) == (1, [])


# --- from one template to another -------------------------------------------------------------


def test_an_update_makes_new_pods_up_to_its_surge_and_ends_old_ones_down_to_its_least() -> None:
    web = cluster(4, maxSurge=1, maxUnavailable=1)
    web.change_template("two")
    changes = web.step()
    assert len(changes.create) == 1
    assert len(changes.delete) == 1


def test_the_limits_of_an_update_are_a_quarter_up_and_a_quarter_down_if_none_are_given() -> None:
    web = cluster(6)  # a share of 1.5 is 2 above and 1 below
    web.change_template("two")
    changes = web.step()
    assert (len(changes.create), len(changes.delete)) == (2, 1)


def test_an_update_that_may_do_neither_ends_one_at_a_time() -> None:
    web = cluster(3, maxSurge=0, maxUnavailable="10%")
    web.change_template("two")
    changes = web.step()
    assert (len(changes.create), len(changes.delete)) == (0, 1)


def test_an_update_waits_for_new_pods_to_be_ready() -> None:
    web = cluster(2, maxSurge=1, maxUnavailable=0)
    web.change_template("two")
    (made,) = web.step().create
    assert web.step() == web.step()  # waits
    assert len(web.active("one")) == 2
    web.ready(made["metadata"]["name"])
    assert len(web.step().delete) == 1


def test_an_update_ends_old_pods_that_are_not_ready_first() -> None:
    web = cluster(3, maxSurge=0, maxUnavailable=1)
    first = next(iter(web.pods))
    web.ready(first, is_it=False)
    web.change_template("two")
    assert names(web.step().delete) == [first]


def test_an_update_keeps_old_pods_that_may_become_ready_before_new_ones_do() -> None:
    web = cluster(4, maxSurge=1, maxUnavailable=1)
    for name in web.pods:
        web.ready(name, is_it=False)
    web.change_template("two")
    for _ in range(5):  # nobody becomes ready
        web.step()
    assert len(web.active("one")) + len(web.active("two")) == 5
    assert len(web.active("one")) == 3
    web.settle()
    assert len(web.active("two")) == len(web.pods) == 4


def test_a_template_that_is_written_back_keeps_the_pods_that_have_it() -> None:
    web = cluster(4, maxSurge=1, maxUnavailable=0)
    first = set(web.pods)
    web.change_template("two")
    web.step()
    web.change_template("one")
    web.settle()
    assert set(web.pods) == first


def test_recreate_makes_new_pods_once_all_old_ones_have_ended() -> None:
    web = Cluster(plan, owner("Deployment", "web", 2, strategy={"type": "Recreate"}))
    web.settle()
    first, second = web.pods
    web.change_template("two")
    scale(web, 5)
    changes = web.step()
    assert (names(changes.delete), changes.create) == ([first, second], [])
    web.end(first)
    assert web.step().create == []
    web.end(second)
    assert len(web.step().create) == 5


def test_recreate_does_not_wait_for_an_old_pod_that_has_failed() -> None:
    web = Cluster(plan, owner("Deployment", "web", 1, strategy={"type": "Recreate"}))
    web.settle()
    web.fail(next(iter(web.pods)))
    web.change_template("two")
    assert len(web.step().create) == 1


# --- whatever happens -------------------------------------------------------------------------


def limits(spec: Object) -> tuple[int, int]:
    wanted = spec["replicas"]
    surge, unavailable = deployment._limits(spec, wanted)
    return wanted + surge, max(0, wanted - unavailable)


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
@given(
    replicas=st.integers(0, 6),
    surge=st.integers(0, 2),
    unavailable=st.integers(0, 2),
    data=st.data(),
)
def test_whatever_happens_there_are_never_too_many_and_an_update_leaves_enough(
    replicas: int, surge: int, unavailable: int, data: st.DataObject
) -> None:
    web = cluster(replicas, maxSurge=surge, maxUnavailable=unavailable)
    for event in data.draw(st.lists(st.sampled_from(EVENTS), max_size=20)):
        happen(event, web, data)
        most, least = limits(web.owner["spec"])
        there, serving = len(web.active()), web.ready_pods()
        changes = web.step()
        assert len(web.active()) <= max(there, most)
        assert web.ready_pods() >= min(serving, least)
        assert not any(map(is_terminating, changes.delete))
    web.settle()
    alive = web.active()
    assert len(alive) == web.owner["spec"]["replicas"]
    assert len({pod["metadata"]["labels"][deployment.HASH] for pod in alive}) <= 1
    assert plan(web.owner, alive).create == plan(web.owner, alive).delete == []


def happen(event: str, web: Cluster, data: st.DataObject) -> None:
    """One thing that is not the controller's doing."""
    if event == "scale":
        scale(web, data.draw(st.integers(0, 6)))
    elif event == "template":
        web.change_template(data.draw(st.sampled_from(["one", "two", "three"])))
    elif event != "plan" and web.pods:
        name = data.draw(st.sampled_from(list(web.pods)))
        if event == "end":
            web.end(name)
        elif event == "fail":
            web.fail(name)
        elif event == "delete":
            web.pods[name]["metadata"]["deletionTimestamp"] = "soon"
        elif not is_terminating(web.pods[name]):
            web.ready(name, is_it=event == "ready")
