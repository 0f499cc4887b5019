"""Each session reaches status and, unless it only followed its roster, an event: once for ever."""

from collections.abc import Callable

import pytest

from rollcall_operator.kube.resources import RL_JOBS
from rollcall_protocol.wire.job_snapshot import SessionCause
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    eventually,
    example,
    writes_settled,
)
from tests.apiserver.kubelet import kubelet, rollouts
from tests.apiserver.operator_process import OperatorProcess

pytestmark = pytest.mark.slow

LOST = "reverse-cpu-0: HeartbeatMissed: nothing received for 3 s"


async def test_sessions_are_kept_and_reported_once_across_operators(
    user: ClusterUser, cluster: Cluster, start_operator: Callable[[], OperatorProcess]
) -> None:
    async with kubelet(user) as node:
        first = start_operator()
        await user.apply(example(replicas=2, membership={"settleSeconds": 0}))
        await rollouts(user, 2)
        await writes_settled(user, cluster)
        joined = await kept(user)
        assert set(joined) == {"NewRoster"}, "the rollouts may be admitted one by one"
        node.coordinator.form(SessionCause.MEMBER_LOST, LOST)
        await eventually(lambda: recorded(user, [LOST]), "the event")
        assert await kept(user) == [*joined, "MemberLost"]
        counted = first.metrics()
        assert any("rollcall_job_sessions_total" in name for name in counted), counted
        first.kill()
        node.coordinator.form(SessionCause.ENGINE_ERROR, "first unseen")
        node.coordinator.form(SessionCause.MEMBER_CAUGHT_UP, "second unseen")
        second = start_operator()
        expected = [LOST, "first unseen", "second unseen"]
        await eventually(lambda: recorded(user, expected), "what happened meanwhile")
        await writes_settled(user, cluster)
        assert await recorded(user, expected), "nothing was recorded twice"
        causes = [*joined, "MemberLost", "EngineError", "MemberCaughtUp"]
        assert await kept(user) == causes
        second.assert_healthy()


async def recorded(user: ClusterUser, details: list[str]) -> bool:
    events = await user.events("reverse", "SessionRebuilt")
    assert not any(event.get("series") for event in events)
    return len(events) == len(details) and all(
        any(detail in event["note"] for event in events) for detail in details
    )


async def kept(user: ClusterUser) -> list[str]:
    (group,) = (await user.get(RL_JOBS, "reverse"))["status"]["syncGroups"]
    return [record["cause"] for record in group["sessions"]]
