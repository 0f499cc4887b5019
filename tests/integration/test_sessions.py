"""Each session reaches status and, unless it only followed its roster, an event: once for ever."""

from collections.abc import Callable

from rollcall_operator.kube.resources import RL_JOBS
from rollcall_protocol.wire.job_snapshot import SessionCause
from tests.integration.cluster import Cluster
from tests.integration.kubelet import kubelet, rollouts
from tests.integration.operator_process import OperatorProcess
from tests.integration.world import World, eventually, example, operator_writes, quiet

LOST = "reverse-cpu-0: HeartbeatMissed: nothing received for 3 s"


async def test_sessions_are_kept_and_told_once_across_operators(
    world: World, cluster: Cluster, start_operator: Callable[[], OperatorProcess]
) -> None:
    async with kubelet(world) as node:
        first = start_operator()
        await world.apply(example(replicas=2, membership={"settleSeconds": 0}))
        await rollouts(world, 2)
        await quiet(lambda: len(operator_writes(cluster.writes(), namespace=world.namespace)))
        node.coordinator.form(SessionCause.MEMBER_LOST, LOST)
        await eventually(lambda: told(world, [LOST]), "the event")
        assert await kept(world) == ["NewRoster", "MemberLost"]
        counted = first.metrics()
        assert any("rollcall_job_sessions_total" in name for name in counted), counted
        first.kill()
        node.coordinator.form(SessionCause.ENGINE_ERROR, "first unseen")
        node.coordinator.form(SessionCause.MEMBER_CAUGHT_UP, "second unseen")
        second = start_operator()
        expected = [LOST, "first unseen", "second unseen"]
        await eventually(lambda: told(world, expected), "what happened meanwhile")
        await quiet(lambda: len(operator_writes(cluster.writes(), namespace=world.namespace)))
        assert await told(world, expected), "nothing was told twice"
        causes = ["NewRoster", "MemberLost", "EngineError", "MemberCaughtUp"]
        assert await kept(world) == causes
        second.assert_healthy()


async def told(world: World, details: list[str]) -> bool:
    events = await world.events("reverse", "SessionRebuilt")
    assert not any(event.get("series") for event in events)
    return len(events) == len(details) and all(
        any(detail in event["note"] for event in events) for detail in details
    )


async def kept(world: World) -> list[str]:
    (group,) = (await world.get(RL_JOBS, "reverse"))["status"]["syncGroups"]
    return [record["cause"] for record in group["sessions"]]
