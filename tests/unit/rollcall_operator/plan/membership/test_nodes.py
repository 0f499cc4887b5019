"""Nodes that are about to go, and nodes that are out of reach."""

from typing import Any

import pytest

from rollcall_operator.plan.membership.nodes import PREEMPTION_TAINTS, node_facts
from rollcall_operator.plan.model import NodeFacts, Taint, Toleration
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

SPOT = Taint("aws-node-termination-handler/spot-itn", "1234")


def node(*taints: dict[str, str], ready: str = "True") -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "Unknown"}]
    conditions.append({"type": "Ready", "status": ready})
    return {
        "metadata": {"name": "n"},
        "spec": {"taints": list(taints)},
        "status": {"conditions": conditions},
    }


def facts(body: dict[str, Any]) -> NodeFacts | None:
    return node_facts(body, PREEMPTION_TAINTS)


# --- what is kept of a node ----------------------------------------------------------------------


def test_a_node_without_trouble_is_not_kept() -> None:
    spot_pool = {"key": "kubernetes.azure.com/scalesetpriority", "effect": "NoSchedule"}
    assert facts(node(spot_pool)) is None
    assert facts({"metadata": {"name": "n"}}) is None


@pytest.mark.parametrize("key", PREEMPTION_TAINTS)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_taints_of_a_node_that_will_be_gone(key: str, effect: str) -> None:
    found = facts(node({"key": key, "value": "x", "effect": effect}))
    assert found == NodeFacts("n", (Taint(key, "x", effect),))


def test_a_taint_that_excludes_no_pod_does_not_count() -> None:
    """Else the successor could land on the same node, to be deleted again."""
    assert facts(node({"key": SPOT.key, "effect": "PreferNoSchedule"})) is None


@pytest.mark.parametrize(("ready", "lost"), [("True", False), ("False", False), ("Unknown", True)])
def test_a_node_is_lost_when_its_kubelet_stops_reporting(ready: str, lost: bool) -> None:
    found = facts(node(ready=ready))
    assert (found is not None and found.lost) is lost


# --- preemption ----------------------------------------------------------------------------------


def on_nodes(**nodes: NodeFacts) -> JobSimulator:
    """Running; the trainer is on node-t, the rollouts on node-0 and node-1."""
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.trainer, node="node-t")
    for index, pod in enumerate(simulator.pods_of("bad-cpu")):
        simulator.change(pod, node=f"node-{index}")
    simulator.nodes = {name.replace("_", "-"): facts for name, facts in nodes.items()}
    return simulator


def test_rollouts_leave_a_node_that_will_be_gone_at_once() -> None:
    simulator = on_nodes(node_0=NodeFacts("node-0", (SPOT,)))
    victim = simulator.pods_of("bad-cpu")[0]
    plan = simulator.reconcile()
    assert [(gone.uid, gone.force) for gone in plan.pod_deletions] == [(victim.uid, False)]
    (event,) = (event for event in plan.events if event.reason == "RolloutMoved")
    assert victim.name in event.message
    assert SPOT.key in event.message


def test_a_rollout_on_its_way_out_is_left_alone() -> None:
    simulator = on_nodes(node_0=NodeFacts("node-0", (SPOT,)))
    simulator.change(
        simulator.pods_of("bad-cpu")[0], terminating=True, leaves_by=simulator.now + 30
    )
    assert simulator.reconcile().pod_deletions == ()


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        (Toleration(key=SPOT.key, operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key=SPOT.key, value="1234", effect="NoSchedule"), True),
        (Toleration(key=SPOT.key, value="other"), False),
        (Toleration(key=SPOT.key, operator="Exists", effect="NoExecute"), False),
        (Toleration(key="another", operator="Exists"), False),
    ],
)
def test_a_pod_that_tolerates_the_taint_stays(toleration: Toleration, stays: bool) -> None:
    simulator = on_nodes(node_0=NodeFacts("node-0", (SPOT,)))
    simulator.change(simulator.pods_of("bad-cpu")[0], tolerations=(toleration,))
    assert (simulator.reconcile().pod_deletions == ()) is stays


def test_one_that_tolerates_not_all_taints_of_the_node_leaves() -> None:
    simulator = on_nodes(node_0=NodeFacts("node-0", (SPOT, Taint("other", "", "NoSchedule"))))
    victim = simulator.pods_of("bad-cpu")[0]
    tolerates = (Toleration(key=SPOT.key, operator="Exists"),)
    simulator.change(victim, tolerations=tolerates)
    assert [gone.uid for gone in simulator.reconcile().pod_deletions] == [victim.uid]


def test_a_trainer_stays_on_a_terminating_node_and_one_event_reports_it() -> None:
    simulator = on_nodes(node_t=NodeFacts("node-t", (SPOT,)))
    plan = simulator.reconcile()
    assert plan.pod_deletions == ()
    (event,) = plan.events
    assert (event.type, event.reason) == ("Warning", "TrainerNodeTerminating")
    assert simulator.reconcile(60).events == ()


def test_no_rollout_is_moved_when_the_job_has_finished() -> None:
    simulator = on_nodes(node_0=NodeFacts("node-0", (SPOT,)))
    simulator.edit({"spec.cleanPodPolicy": "None", "spec.activeDeadlineSeconds": 1})
    simulator.reconcile(10)
    assert simulator.status["phase"] == "Failed"
    assert simulator.reconcile().pod_deletions == ()


# --- lost nodes ----------------------------------------------------------------------------------


def test_a_trainer_that_cannot_end_on_a_lost_node_is_force_deleted_after_its_grace_period() -> None:
    simulator = on_nodes(node_t=NodeFacts("node-t", lost=True))
    pod = simulator.change(simulator.trainer, terminating=True, leaves_by=simulator.now + 30)
    first = simulator.reconcile()
    assert first.pod_deletions == ()
    assert first.requeue_after is not None
    assert first.requeue_after <= 31
    plan = simulator.reconcile(31)
    assert [(gone.uid, gone.force) for gone in plan.pod_deletions] == [(pod.uid, True)]
    assert "TrainerForceDeleted" in [event.reason for event in plan.events]


def test_a_trainer_that_was_not_deleted_is_not_force_deleted() -> None:
    simulator = on_nodes(node_t=NodeFacts("node-t", lost=True))
    assert simulator.reconcile(600).pod_deletions == ()


@pytest.mark.parametrize("nodes", [{}, {"node_t": NodeFacts("node-t", (SPOT,))}])
def test_a_trainer_that_ends_slowly_on_a_ready_node_is_not_force_deleted(
    nodes: dict[str, NodeFacts],
) -> None:
    simulator = on_nodes(**nodes)
    simulator.change(simulator.trainer, terminating=True, leaves_by=simulator.now + 30)
    assert simulator.reconcile(600).pod_deletions == ()


def test_another_jobs_trainer_is_none_of_our_business() -> None:
    simulator = on_nodes(node_t=NodeFacts("node-t", lost=True))
    simulator.change(
        simulator.trainer, terminating=True, leaves_by=simulator.now, job_uid="another"
    )
    assert simulator.reconcile(600).pod_deletions == ()


def test_rollouts_that_end_on_a_lost_node_need_no_force() -> None:
    """A Deployment makes others meanwhile."""
    simulator = on_nodes(node_0=NodeFacts("node-0", lost=True))
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True, leaves_by=simulator.now)
    assert simulator.reconcile(600).pod_deletions == ()
