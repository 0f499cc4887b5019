"""What is kept of nodes, and who is woken."""

from typing import Any

from rollcall_operator.control.node_watch import NodeWatch

TAINT = "karpenter.sh/disrupted"


def node(name: str, *, tainted: bool = True) -> dict[str, Any]:
    taints = [{"key": TAINT, "effect": "NoSchedule"}] if tainted else []
    return {"metadata": {"name": name}, "spec": {"taints": taints}}


def make() -> tuple[NodeWatch, list[tuple[str, str]]]:
    woken: list[tuple[str, str]] = []
    return NodeWatch(taints=[TAINT], wake=woken.append), woken


def test_jobs_with_pods_on_a_node_are_woken_when_something_is_wrong_with_it_or_right_again() -> (
    None
):
    book, woken = make()
    book.troubled(("ns", "here"), ["a", "b"])
    book.troubled(("ns", "elsewhere"), ["c", ""])
    book.seen(node("a"), False)
    assert woken == [("ns", "here")]
    book.seen(node("a", tainted=False), False)
    assert woken == [("ns", "here")] * 2


def test_a_node_that_tells_nothing_new_wakes_nobody() -> None:
    book, woken = make()
    book.troubled(("ns", "job"), ["a"])
    book.seen(node("a", tainted=False), False)
    assert woken == []
    for _ in range(3):
        book.seen(node("a"), False)
    assert len(woken) == 1


def test_a_job_is_told_of_trouble_that_was_there_before_it() -> None:
    book, _ = make()
    book.seen(node("a"), False)
    assert set(book.troubled(("ns", "job"), ["a", "b"])) == {"a"}


def test_a_node_that_is_gone_is_forgotten() -> None:
    book, woken = make()
    book.seen(node("a"), False)
    book.seen(node("a"), True)
    assert book.troubled(("ns", "job"), ["a"]) == {}
    book.forget(("ns", "job"))
    book.seen(node("a"), False)
    assert woken == []
