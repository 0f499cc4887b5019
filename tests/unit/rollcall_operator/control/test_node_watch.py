"""What is kept of nodes, and which jobs are reconciled for them."""

from typing import Any

from rollcall_operator.control.node_watch import NodeWatch

TAINT = "karpenter.sh/disrupted"


def node(name: str, *, tainted: bool = True) -> dict[str, Any]:
    taints = [{"key": TAINT, "effect": "NoSchedule"}] if tainted else []
    return {"metadata": {"name": name}, "spec": {"taints": taints}}


def make() -> tuple[NodeWatch, list[tuple[str, str]]]:
    enqueued: list[tuple[str, str]] = []
    return NodeWatch(taints=[TAINT], enqueue=enqueued.append), enqueued


def test_jobs_with_pods_on_a_node_are_reconciled_when_it_gets_a_taint_and_loses_it() -> None:
    nodes, enqueued = make()
    nodes.subscribe(("ns", "here"), ["a", "b"])
    nodes.subscribe(("ns", "elsewhere"), ["c", ""])
    nodes.seen(node("a"), False)
    assert enqueued == [("ns", "here")]
    nodes.seen(node("a", tainted=False), False)
    assert enqueued == [("ns", "here")] * 2


def test_an_update_that_changes_nothing_of_interest_reconciles_no_job() -> None:
    nodes, enqueued = make()
    nodes.subscribe(("ns", "job"), ["a"])
    nodes.seen(node("a", tainted=False), False)
    assert enqueued == []
    for _ in range(3):
        nodes.seen(node("a"), False)
    assert len(enqueued) == 1


def test_reading_does_not_subscribe() -> None:
    nodes, enqueued = make()
    assert nodes.troubled(["a"]) == {}
    nodes.seen(node("a"), False)
    assert enqueued == []


def test_a_node_was_in_trouble_before_the_job_subscribed() -> None:
    nodes, _ = make()
    nodes.seen(node("a"), False)
    assert set(nodes.troubled(["a", "b"])) == {"a"}


def test_a_deleted_node_and_a_deleted_job_are_forgotten() -> None:
    nodes, enqueued = make()
    nodes.subscribe(("ns", "job"), ["a"])
    nodes.seen(node("a"), False)
    nodes.seen(node("a"), True)
    assert nodes.troubled(["a"]) == {}
    nodes.forget(("ns", "job"))
    enqueued.clear()
    nodes.seen(node("a"), False)
    assert enqueued == []
