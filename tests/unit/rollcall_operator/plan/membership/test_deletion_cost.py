"""Scale-down: the cheapest rollouts are marked, before the Deployment is lowered, and only then."""

from rollcall_operator.plan.model import Plan, PodFacts
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import Stage

POOL = "bad-cpu"


def running(replicas: int) -> tuple[Stage, list[PodFacts]]:
    """A job with so many rollouts, oldest first; all have prompts in hand."""
    stage = Stage({"spec.rollouts[0].replicas": replicas})
    stage.to_running()
    pods = stage.pods_of(POOL)
    for age, pod in enumerate(reversed(pods)):
        stage.change(pod, created=stage.now - 1000 - age, node="a-node")
    pods = stage.pods_of(POOL)
    stage.report(running=dict.fromkeys(stage.pods, 2))
    return stage, pods


def scaled(stage: Stage, replicas: int) -> Plan:
    stage.scale(POOL, replicas)
    return stage.reconcile()


def marks(plan: Plan) -> dict[str, str | None]:
    return {cost.uid: cost.cost for cost in plan.costs}


def test_draining_then_behind_then_idle_then_newest_go() -> None:
    stage, (oldest, idle, stale, draining, newest) = running(5)
    stage.report(
        running={oldest.uid: 1, newest.uid: 1, idle.uid: 0},
        states={stale.uid: MemberState.STALE, draining.uid: MemberState.DRAINING},
        reasons={draining.uid: "SIGTERM"},
    )
    stage.converge()
    for left, victims in (
        (4, [draining]),
        (3, [draining, stale]),
        (2, [draining, stale, idle]),
        (1, [draining, stale, idle, newest]),
    ):
        stage.children[f"Deployment/{POOL}"]["spec"]["replicas"] = 5
        for pod in stage.pods_of(POOL):
            stage.change(pod, deletion_cost=None)
        costs = marks(scaled(stage, left))
        assert set(costs) == {pod.uid for pod in victims}
        assert sorted(costs, key=lambda uid: int(costs[uid] or 0)) == [pod.uid for pod in victims]


def test_the_deployment_is_lowered_by_the_same_plan() -> None:
    stage, _ = running(3)
    plan = scaled(stage, 2)
    assert [body["kind"] for body in plan.applies] == ["Deployment"]
    assert len(plan.costs) == 1


def test_who_the_replica_set_takes_first_anyway_is_counted_as_a_victim() -> None:
    stage, (first, second, unready) = running(3)
    stage.change(unready, running=False, ready=False, phase="Pending", node="")
    assert set(marks(scaled(stage, 2))) == {unready.uid}
    assert second.uid in marks(scaled(stage, 1))
    assert first.uid not in marks(scaled(stage, 1))


def test_nothing_is_marked_while_no_scale_down_is_due() -> None:
    stage, pods = running(3)
    stage.report(running={pods[0].uid: 0})
    assert scaled(stage, 3).costs == ()
    assert scaled(stage, 5).costs == ()


def test_scaling_to_nothing_needs_no_order() -> None:
    stage, _ = running(3)
    assert scaled(stage, 0).costs == ()


def test_a_mark_is_written_once() -> None:
    stage, _ = running(3)
    assert len(scaled(stage, 2).costs) == 1
    stage.children[f"Deployment/{POOL}"]["spec"]["replicas"] = 3  # died before it was lowered
    assert stage.reconcile().costs == ()


def test_an_old_mark_of_one_who_stays_is_taken_off_at_the_next_scale_down() -> None:
    stage, (kept, _, newest) = running(3)
    stage.change(kept, deletion_cost="-2")
    assert scaled(stage, 4).costs == ()
    assert marks(scaled(stage, 2)) == {kept.uid: None, newest.uid: "-1"}


def test_costs_in_the_users_template_stand() -> None:
    stage, _ = running(3)
    template = stage.pools[POOL]["spec"]["template"]
    template["metadata"] = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "7"}}
    stage.edit({"spec.rollouts[0].template.metadata": template["metadata"]})
    assert scaled(stage, 2).costs == ()


def test_without_news_those_whose_gate_is_closed_go_first() -> None:
    stage, (first, second, third) = running(3)
    stage.snapshot = None
    stage.change(first, gate=False, ready=False)
    assert set(marks(scaled(stage, 2))) == {first.uid}
    assert {second.uid, third.uid}.isdisjoint(marks(stage.plans[-1]))
