"""Who leaves: the cheapest at a scale-down, those on a node that goes, the drained, the missed.

The controllers are real; pods only say that they run.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import NODES, PODS
from rollcall_operator.kube.transport import STRATEGIC_PATCH
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import ClusterUser, eventually, example, operator_writes
from tests.apiserver.coordinator import Member
from tests.apiserver.kubelet import gate_is_open, kubelet, rollouts
from tests.apiserver.operator_process import OperatorProcess

POOL = "reverse-cpu"


@pytest.fixture
async def nodes(user: ClusterUser) -> AsyncIterator[list[str]]:
    """Three nodes that never run anything."""
    names = [f"{user.namespace}-{letter}" for letter in "abc"]
    for name in names:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        await user.client.create(NODES, body)
        await set_ready(user, name, "True")
    yield names
    for name in names:
        await user.client.delete(NODES, namespace=None, name=name)


async def set_ready(user: ClusterUser, node: str, ready: str) -> None:
    """Set a node's Ready condition."""
    await user.client.transport.request(
        "PATCH",
        NODES.path(name=node, subresource="status"),
        verb="patch_status",
        plural=NODES.plural,
        body={"status": {"conditions": [{"type": "Ready", "status": ready}]}},
        content_type=STRATEGIC_PATCH,
    )


def job(replicas: int, **membership: int) -> Object:
    return example(replicas=replicas, membership={"settleSeconds": 0, **membership})


def names(pods: Mapping[str, Object]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods.values()}


def cost_of(pod: Object) -> str | None:
    annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
    return annotations.get(labels.DELETION_COST)


# --- scale-down ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("direct_operator")
async def test_a_scale_down_takes_the_draining_the_stale_and_the_idle_and_writes_nothing_before(
    user: ClusterUser, cluster: Cluster
) -> None:
    async with kubelet(user) as node:
        await user.apply(job(5))
        pods = await rollouts(user, 5)
        draining, stale, idle, *busy = pods
        said = {
            draining: Member(MemberState.DRAINING, "SIGTERM"),
            stale: Member(MemberState.STALE, "missed a commit"),
            idle: Member(running=0),
        }
        node.coordinator.say(said)
        await eventually(lambda: closed(user, {draining, stale}), "two gates are closed")
        assert not marks(cluster, user)
        assert all(cost_of(pod) is None for pod in pods.values())

        user.kubectl("scale", f"rolloutpool/{POOL}", "--replicas=2")
        assert set(await rollouts(user, 2)) == set(busy)
        assert len(marks(cluster, user)) == 3

        user.kubectl("scale", f"rolloutpool/{POOL}", "--replicas=4")
        await rollouts(user, 4)
        assert len(marks(cluster, user)) == 3


@pytest.mark.usefixtures("direct_operator")
async def test_of_equals_the_newest_go(user: ClusterUser) -> None:
    async with kubelet(user):
        await user.apply(job(2))
        old = set(await rollouts(user, 2))
        await asyncio.sleep(1)  # creationTimestamp counts in whole seconds
        user.kubectl("scale", f"rolloutpool/{POOL}", "--replicas=4")
        await rollouts(user, 4)
        user.kubectl("scale", f"rolloutpool/{POOL}", "--replicas=2")
        assert set(await rollouts(user, 2)) == old


async def event(user: ClusterUser, reason: str) -> str:
    """Wait for an event, which is written after what it reports; its note."""

    async def note() -> str | None:
        events = await user.events("reverse", reason)
        return events[0]["note"] if events else None

    return await eventually(note, f"the event {reason}")


async def closed(user: ClusterUser, uids: set[str]) -> bool:
    pods = {pod["metadata"]["uid"]: pod for pod in await user.listed(PODS)}
    return not any(gate_is_open(pods[uid]) for uid in uids)


def marks(cluster: Cluster, user: ClusterUser) -> list[str]:
    writes = operator_writes(cluster.writes(), namespace=user.namespace)
    return [text for text in writes if text.startswith("patch pods/") and "/status" not in text]


# --- nodes ---------------------------------------------------------------------------------------


def spread(nodes: list[str]) -> Any:
    """Trainer and first rollout on the first node, the second rollout on the second, the rest on
    the third.
    """
    placed: list[str] = []

    def node_of(pod: Object) -> str:
        name = pod["metadata"]["name"]
        if pod["metadata"]["labels"][labels.ROLE] == labels.TRAINER:
            return nodes[0]
        if name not in placed:
            placed.append(name)
        return nodes[min(placed.index(name), 2)]

    return node_of


async def test_rollouts_leave_a_node_with_a_spot_taint_and_the_trainer_stays(
    user: ClusterUser, direct_operator: OperatorProcess, nodes: list[str]
) -> None:
    async with kubelet(user, node_of=spread(nodes)):
        await user.apply(job(2))
        before = await rollouts(user, 2)
        (victim,) = [u for u, p in before.items() if p["spec"]["nodeName"] == nodes[0]]
        trainer = await user.get(PODS, "reverse-trainer-0")
        taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
        await user.client.merge(
            NODES, namespace=None, name=nodes[0], patch={"spec": {"taints": [taint]}}
        )

        async def moved() -> bool:
            now = await rollouts(user, 2)
            return victim not in now and len(set(now) & set(before)) == 1

        await eventually(moved, "another rollout instead of the one on the node")
        after = await user.get(PODS, "reverse-trainer-0")
        assert after["metadata"]["uid"] == trainer["metadata"]["uid"]
        await event(user, "RolloutMoved")
        await event(user, "TrainerNodeTerminating")
        direct_operator.assert_healthy()


@pytest.mark.usefixtures("direct_operator")
async def test_a_trainer_on_a_lost_node_is_force_deleted_and_starts_elsewhere(
    user: ClusterUser, nodes: list[str]
) -> None:
    async with kubelet(user, node_of=spread(nodes)) as node:
        body = job(1)
        body["spec"]["trainer"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        await user.apply(body)
        await rollouts(user, 1)
        before = await user.get(PODS, "reverse-trainer-0")
        node.stuck.add(nodes[0])
        await user.delete(PODS, "reverse-trainer-0")  # as the node controller does
        await set_ready(user, nodes[0], "Unknown")

        async def another() -> bool:
            now = await user.get(PODS, "reverse-trainer-0")
            return bool(now["metadata"]["uid"] != before["metadata"]["uid"])

        await eventually(another, "another pod of the same name", seconds=60)
        await event(user, "TrainerForceDeleted")


@pytest.mark.kubernetes("evictions")
async def test_kubectl_drains_a_node_without_a_budget_in_its_way(
    user: ClusterUser, direct_operator: OperatorProcess, nodes: list[str]
) -> None:
    async with kubelet(user, node_of=spread(nodes)):
        await user.apply(job(2))
        before = await rollouts(user, 2)
        trainer = await user.get(PODS, "reverse-trainer-0")
        await asyncio.to_thread(
            user.kubectl, "drain", nodes[0], "--delete-emptydir-data", "--timeout=40s"
        )
        after = await rollouts(user, 2)
        assert len(set(after) & set(before)) == 1
        now = await user.get(PODS, "reverse-trainer-0")
        assert now["metadata"]["uid"] != trainer["metadata"]["uid"]
        direct_operator.assert_healthy()


# --- drained, missed -----------------------------------------------------------------------------


async def replaced(user: ClusterUser, victim: str, count: int) -> None:
    async def done() -> bool:
        pods = await user.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
        uids = {pod["metadata"]["uid"] for pod in pods}
        return victim not in uids and len(uids) == count

    await eventually(done, "another rollout instead")


@pytest.mark.usefixtures("direct_operator")
async def test_a_rollout_drained_by_a_call_is_replaced(user: ClusterUser) -> None:
    async with kubelet(user) as node:
        await user.apply(job(2))
        victim = next(iter(await rollouts(user, 2)))
        node.coordinator.say({victim: Member(MemberState.DRAINING, "spot notice")})
        await replaced(user, victim, 2)


@pytest.mark.usefixtures("direct_operator")
async def test_suspects_are_replaced_one_at_a_time(user: ClusterUser) -> None:
    async with kubelet(user) as node:
        await user.apply(job(3, replaceAfterSeconds=3))
        all_rollouts = await rollouts(user, 3)
        node.coordinator.say(dict.fromkeys(all_rollouts, Member(MemberState.SUSPECT, "silent")))
        await eventually(lambda: gone(user, all_rollouts, 1), "one is replaced")
        await eventually(lambda: gone(user, all_rollouts, 2), "then another")
        assert "Suspect: silent" in await event(user, "RolloutReplaced")


async def gone(user: ClusterUser, before: Mapping[str, Object], count: int) -> bool:
    pods = await user.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
    left = set(before) & {pod["metadata"]["uid"] for pod in pods}
    assert len(left) >= len(before) - count, "too many at once"
    return len(left) == len(before) - count
