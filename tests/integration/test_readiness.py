"""Ready means current: a pod whose probe passes is ready only while the operator says so."""

from collections.abc import Callable

from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.integration.cluster import Cluster
from tests.integration.coordinator import Member
from tests.integration.kubelet import gate_is_open, kubelet, rollouts
from tests.integration.operator_process import OperatorProcess
from tests.integration.world import World, eventually, example, operator_writes, quiet


async def test_a_probe_alone_never_brings_a_stale_rollout_back(
    world: World, cluster: Cluster, start_operator: Callable[[], OperatorProcess]
) -> None:
    async with kubelet(world) as node:
        first = start_operator()
        await world.apply(example(replicas=2, membership={"settleSeconds": 0}))
        stale, current = await rollouts(world, 2)
        node.coordinator.say({stale: Member(MemberState.STALE)})
        await eventually(lambda: gates_are(world, {current}), "the stale one is out")
        first.kill()
        node.coordinator.say({current: Member(MemberState.STALE)})  # while nobody looks
        second = start_operator()
        await eventually(lambda: gates_are(world, {stale}), "gates follow the versions")
        node.coordinator.say({})
        await rollouts(world, 2)
        await quiet(lambda: len(operator_writes(cluster.writes(), namespace=world.namespace)))
        second.assert_healthy()


async def gates_are(world: World, uids: set[str]) -> bool:
    pods = await world.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
    return {p["metadata"]["uid"] for p in pods if gate_is_open(p)} == uids
