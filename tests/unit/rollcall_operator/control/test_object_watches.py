"""What watches of all kinds put into the store, which job they reconcile, and what nodes keep."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollcall_operator.api import labels
from rollcall_operator.control.job_store import KINDS, JobStore
from rollcall_operator.control.object_watches import ObjectWatches, outline
from rollcall_operator.kube.resources import PODS
from tests.unit.rollcall_operator.kube.api_server import ApiServer, client_of, pod, until

if TYPE_CHECKING:
    from rollcall_operator.kube.client import Object
    from rollcall_operator.plan.model import JobKey


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


class Watching:
    """Watches of a stand-in for an API server, and what they have reported."""

    def __init__(self) -> None:
        self.server = ApiServer(version=7, pods=[pod("a", 1, **{labels.JOB: "one"})])
        self.store = JobStore()
        self.enqueued: list[JobKey] = []
        self.seen: list[str] = []
        self.nodes: list[tuple[Object, bool]] = []

    @asynccontextmanager
    async def run(
        self, folder: Path, *, namespaces: tuple[str, ...]
    ) -> AsyncIterator[ObjectWatches]:
        """All of them, listed."""
        async with client_of(folder, self.server.answer) as client:
            watches = ObjectWatches(
                client,
                store=self.store,
                namespaces=namespaces,
                enqueue=lambda key, _: self.enqueued.append(key),
                seen=self.seen.append,
                node_seen=lambda node, gone: self.nodes.append((node, gone)),
            )
            running = asyncio.create_task(watches.run())
            try:
                async with asyncio.timeout(5):
                    await watches.listed()
                yield watches
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def reached(watches: ObjectWatches, plural: str) -> int:
    """The resourceVersion up to which the store has seen all of a kind."""
    return watches._watch(plural, "ns").reached


def all_reach(watches: ObjectWatches, version: int) -> bool:
    return all(reached(watches, kind.plural) == version for kind in KINDS)


def changed(version: int, phase: str) -> "Object":
    return pod("a", version, **{labels.JOB: "one"}) | {"status": {"phase": phase}}


async def test_an_event_reconciles_the_job_that_it_names_and_the_one_that_it_named(
    tmp_path: Path,
) -> None:
    watching = Watching()
    labelled = len(KINDS) - 2  # an RLJob is named by itself, a pool names its job in its spec
    async with watching.run(tmp_path, namespaces=("ns", "other")):
        await until(lambda: len(watching.server.watched_from) == 2 * len(KINDS) + 1)
        assert watching.enqueued.count(("ns", "one")) == 2 * labelled
        assert watching.enqueued.count(("ns", "a")) == 2, "as an RLJob"
        assert len(watching.nodes) == 1
        selectors = [query.get("labelSelector") for query in watching.server.queries]
        assert selectors.count(labels.JOB) == 4 * labelled, "each LIST and WATCH of pods, children"
        assert set(watching.seen) == {"nodes", *(resource.plural for resource in KINDS)}
        assert len(watching.store.objects(("ns", "one")).pods) == 1
        watching.enqueued.clear()
        watching.server.send("MODIFIED", pod("a", 8, **{labels.JOB: "two"}))
        await until(lambda: watching.enqueued.count(("ns", "two")) == 2 * labelled)
        assert watching.enqueued.count(("ns", "one")) == 2 * labelled
        assert watching.store.objects(("ns", "one")).pods == ()
        assert len(watching.store.objects(("ns", "two")).pods) == 1


async def test_how_far_the_store_has_come_is_known_for_each_kind(tmp_path: Path) -> None:
    watching = Watching()
    async with watching.run(tmp_path, namespaces=()) as watches:
        assert reached(watches, "pods") == 7
        watching.server.send("BOOKMARK", {"metadata": {"resourceVersion": "12"}})
        await until(lambda: reached(watches, "rljobs") == 12)


async def test_what_was_written_is_in_the_store_and_reconciles_no_job(tmp_path: Path) -> None:
    watching, job = Watching(), ("ns", "one")

    def phase_of_the_pod() -> str:
        return watching.store.objects(job).pods[0].phase

    async with watching.run(tmp_path, namespaces=()) as watches:
        await until(lambda: len(watching.server.watched_from) == len(KINDS) + 1)
        watching.enqueued.clear()
        watches.writes.wrote(PODS, changed(9, "Running"))
        assert phase_of_the_pod() == "Running"
        watching.server.send("MODIFIED", changed(9, "Running"))
        await until(lambda: all_reach(watches, 9))
        assert phase_of_the_pod() == "Running"
        # This server reports the object as one of each kind; an RLJob and a pool name other jobs.
        assert watching.enqueued.count(job) == len(KINDS) - 3
        watching.enqueued.clear()
        watches.writes.wrote(PODS, changed(11, "Failed"))
        watching.server.send("MODIFIED", changed(10, "Failed"))  # somebody else's write
        await until(lambda: all_reach(watches, 10))
        assert phase_of_the_pod() == "Failed"
        assert watching.enqueued.count(job) == 1, "for what somebody else has written"


async def test_what_is_reported_before_its_answer_reconciles_no_job(tmp_path: Path) -> None:
    watching, job = Watching(), ("ns", "one")

    async with watching.run(tmp_path, namespaces=()) as watches:
        await until(lambda: len(watching.server.watched_from) == len(KINDS) + 1)
        watching.enqueued.clear()
        with watches.writes.writing(job):
            watching.server.send("MODIFIED", changed(9, "Running"))
            await until(lambda: all_reach(watches, 9))
            # This server reports the object as one of each kind, and each kind was written.
            for kind in KINDS:
                watches.writes.wrote(kind, changed(9, "Running"))
        assert job not in watching.enqueued
        with watches.writes.writing(job):
            watching.server.send("MODIFIED", changed(10, "Failed"))  # somebody else's write
            await until(lambda: all_reach(watches, 10))
            assert job not in watching.enqueued
        assert watching.enqueued.count(job) == 1
        watching.enqueued.clear()
        with watches.writes.writing(job):
            watches.writes.wrote(PODS, changed(12, "Unknown"))
            watching.server.send("MODIFIED", changed(11, "Unknown"))  # is in the answer
            await until(lambda: reached(watches, "pods") == 11)
            assert watching.enqueued.count(job) == 1


async def test_what_kopf_alone_has_reported_reconciles_its_job_after_a_second_look(
    tmp_path: Path,
) -> None:
    watching, job = Watching(), ("ns", "one")
    async with watching.run(tmp_path, namespaces=()) as watches:
        await until(lambda: len(watching.server.watched_from) == len(KINDS) + 1)
        watching.enqueued.clear()
        watches.reported(job, PODS.plural, "a", "7")
        assert watching.enqueued == [], "the store has come as far"
        watches.reported(job, PODS.plural, "a", "9")
        assert watching.enqueued == [job]
        watches.writes.wrote(PODS, pod("a", 9, **{labels.JOB: "one"}))
        watches.reported(job, PODS.plural, "a", "9")
        assert watching.enqueued == [job], "the operator's own write"
        watches.reported(job, PODS.plural, "b", "9")
        watches.reported(job, PODS.plural, "a", "10")
        assert watching.enqueued == [job] * 3, "of another object, and of somebody else"


async def test_watches_that_fail_are_known_to_be_lost_until_they_are_open_again(
    tmp_path: Path,
) -> None:
    watching = Watching()
    async with watching.run(tmp_path, namespaces=()) as watches:
        await until(lambda: len(watching.server.watched_from) == len(KINDS) + 1)
        assert watches.lost_for() == 0.0
        watching.server.refusals = [500]
        watching.server.end_watch()
        await until(lambda: watches.lost_for() > 0.0)
        await until(lambda: watches.lost_for() == 0.0)
