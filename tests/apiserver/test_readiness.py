"""Ready means current: a pod whose probe passes is ready only while the operator says so."""

from collections.abc import Callable

from rollcall_operator.api import labels
from rollcall_operator.kube.resources import PODS
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    eventually,
    example,
    writes_settled,
)
from tests.apiserver.coordinator import Member
from tests.apiserver.kubelet import gate_is_open, kubelet, rollouts
from tests.apiserver.operator_process import OperatorProcess


async def test_a_probe_alone_never_brings_a_stale_rollout_back(
    user: ClusterUser, cluster: Cluster, start_operator: Callable[[], OperatorProcess]
) -> None:
    async with kubelet(user) as node:
        first = start_operator()
        await user.apply(example(replicas=2, membership={"settleSeconds": 0}))
        stale, current = await rollouts(user, 2)
        node.coordinator.say({stale: Member(MemberState.STALE)})
        await eventually(lambda: gates_are(user, {current}), "the stale one is out")
        first.kill()
        node.coordinator.say({current: Member(MemberState.STALE)})  # while no operator runs
        second = start_operator()
        await eventually(lambda: gates_are(user, {stale}), "gates follow the versions")
        node.coordinator.say({})
        await rollouts(user, 2)
        await writes_settled(user, cluster)
        second.assert_healthy()


async def gates_are(user: ClusterUser, uids: set[str]) -> bool:
    pods = await user.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
    return {p["metadata"]["uid"] for p in pods if gate_is_open(p)} == uids
