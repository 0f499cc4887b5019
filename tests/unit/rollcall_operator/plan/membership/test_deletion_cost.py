"""Scale-down: the cheapest rollouts are marked, before the Deployment is lowered, and only then."""

from rollcall_operator.plan.model import JobPlan, PodFacts
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

POOL = "bad-cpu"


def running(replicas: int) -> tuple[JobSimulator, list[PodFacts]]:
    """A job with so many rollouts, oldest first; all have prompts in hand."""
    simulator = JobSimulator({"spec.rollouts[0].replicas": replicas})
    simulator.to_running()
    pods = simulator.pods_of(POOL)
    for age, pod in enumerate(reversed(pods)):
        simulator.change(pod, created=simulator.now - 1000 - age, node="a-node")
    pods = simulator.pods_of(POOL)
    simulator.report(running=dict.fromkeys(simulator.pods, 2))
    return simulator, pods


def scaled(simulator: JobSimulator, replicas: int) -> JobPlan:
    simulator.scale(POOL, replicas)
    return simulator.reconcile()


def marks(plan: JobPlan) -> dict[str, str | None]:
    return {cost.uid: cost.cost for cost in plan.costs}


def test_draining_then_behind_then_idle_then_newest_go() -> None:
    simulator, (oldest, idle, stale, draining, newest) = running(5)
    simulator.report(
        running={oldest.uid: 1, newest.uid: 1, idle.uid: 0},
        states={stale.uid: MemberState.STALE, draining.uid: MemberState.DRAINING},
        reasons={draining.uid: "SIGTERM"},
    )
    simulator.converge()
    for left, victims in (
        (4, [draining]),
        (3, [draining, stale]),
        (2, [draining, stale, idle]),
        (1, [draining, stale, idle, newest]),
    ):
        simulator.children[f"Deployment/{POOL}"]["spec"]["replicas"] = 5
        for pod in simulator.pods_of(POOL):
            simulator.change(pod, deletion_cost=None)
        costs = marks(scaled(simulator, left))
        assert set(costs) == {pod.uid for pod in victims}
        assert sorted(costs, key=lambda uid: int(costs[uid] or 0)) == [pod.uid for pod in victims]


def test_the_deployment_is_lowered_by_the_same_plan() -> None:
    simulator, _ = running(3)
    plan = scaled(simulator, 2)
    assert [body["kind"] for body in plan.applies] == ["Deployment"]
    assert len(plan.costs) == 1


def test_a_pod_that_the_replica_set_deletes_first_anyway_is_counted_as_a_victim() -> None:
    simulator, (first, second, unready) = running(3)
    simulator.change(unready, running=False, ready=False, phase="Pending", node="")
    assert set(marks(scaled(simulator, 2))) == {unready.uid}
    assert second.uid in marks(scaled(simulator, 1))
    assert first.uid not in marks(scaled(simulator, 1))


def test_nothing_is_marked_while_no_scale_down_is_due() -> None:
    simulator, pods = running(3)
    simulator.report(running={pods[0].uid: 0})
    assert scaled(simulator, 3).costs == ()
    assert scaled(simulator, 5).costs == ()


def test_scaling_to_nothing_needs_no_order() -> None:
    simulator, _ = running(3)
    assert scaled(simulator, 0).costs == ()


def test_a_mark_is_written_once() -> None:
    simulator, _ = running(3)
    assert len(scaled(simulator, 2).costs) == 1
    simulator.children[f"Deployment/{POOL}"]["spec"]["replicas"] = 3  # died before it was lowered
    assert simulator.reconcile().costs == ()


def test_the_old_deletion_cost_of_a_pod_that_stays_is_removed_at_the_next_scale_down() -> None:
    simulator, (kept, _, newest) = running(3)
    simulator.change(kept, deletion_cost="-2")
    assert scaled(simulator, 4).costs == ()
    assert marks(scaled(simulator, 2)) == {kept.uid: None, newest.uid: "-1"}


def test_costs_in_the_users_template_stand() -> None:
    simulator, _ = running(3)
    template = simulator.pools[POOL]["spec"]["template"]
    template["metadata"] = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "7"}}
    simulator.edit({"spec.rollouts[0].template.metadata": template["metadata"]})
    assert scaled(simulator, 2).costs == ()


def test_without_news_those_whose_gate_is_closed_go_first() -> None:
    simulator, (first, second, third) = running(3)
    simulator.snapshot = None
    simulator.change(first, gate=False, ready=False)
    assert set(marks(scaled(simulator, 2))) == {first.uid}
    assert {second.uid, third.uid}.isdisjoint(marks(simulator.plans[-1]))
