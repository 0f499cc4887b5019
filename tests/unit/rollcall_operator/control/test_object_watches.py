"""Which job is reconciled for an event of a pod or child, and what is kept of nodes."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_operator.api import labels
from rollcall_operator.control.object_watches import LABELLED, ObjectWatches, labelled_job, outline
from tests.unit.rollcall_operator.kube.api_server import ApiServer, client_of, pod, until

if TYPE_CHECKING:
    from rollcall_operator.control.job_state import Key
    from rollcall_operator.kube.client import Object


def test_a_child_is_of_the_job_that_its_label_names() -> None:
    assert labelled_job(pod("a", 1, **{labels.JOB: "j"})) == ("ns", "j")
    assert labelled_job(pod("a", 1)) is None
    assert labelled_job({"metadata": {"namespace": "ns", "name": "a"}}) is None


def test_of_a_node_only_what_is_read_is_kept() -> None:
    taints, conditions = [{"key": "k", "effect": "NoSchedule"}], [{"type": "Ready"}]
    node = {
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"},
        "status": {"conditions": conditions, "images": [{}] * 50},
    }
    assert outline(node) == {
        "metadata": {"name": "n"},
        "spec": {"taints": taints},
        "status": {"conditions": conditions},
    }
    assert outline({"metadata": {"name": "n"}})["spec"] == {"taints": []}


async def test_an_event_reconciles_the_job_that_it_names_and_the_one_that_it_named(
    tmp_path: Path,
) -> None:
    enqueued: list[Key] = []
    seen: list[str] = []
    nodes: list[tuple[Object, bool]] = []
    server = ApiServer(pods=[pod("a", 1, **{labels.JOB: "one"})])
    async with client_of(tmp_path, server.answer) as client:
        watches = ObjectWatches(
            client,
            namespaces=("ns", "other"),
            enqueue=enqueued.append,
            seen=seen.append,
            node_seen=lambda node, gone: nodes.append((node, gone)),
        )
        running = asyncio.create_task(watches.run())
        every = 2 * len(LABELLED) + 1
        await until(lambda: len(server.watched_from) == every)
        assert enqueued == [("ns", "one")] * (every - 1)
        assert len(nodes) == 1
        selectors = [query.get("labelSelector") for query in server.queries]
        assert selectors.count(labels.JOB) == 2 * (every - 1), "each LIST and WATCH but the nodes'"
        assert set(seen) == {"nodes", *(resource.plural for resource in LABELLED)}
        enqueued.clear()
        server.send("MODIFIED", pod("a", 2, **{labels.JOB: "two"}))
        await until(lambda: len(enqueued) == 2 * (every - 1))
        assert set(enqueued) == {("ns", "one"), ("ns", "two")}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
