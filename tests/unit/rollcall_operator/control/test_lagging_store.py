"""Facts that are out of date do no harm: watches may lag behind by any number of events.

`LaggingCluster` checks at each write that no status goes back, no epoch is used twice or handed
out before it is in status, no rollout that runs loses its seat, and nothing that is wanted is
deleted. In the end the watches catch up, and the job must come to rest.
"""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from rollcall_operator.control.job_store import KINDS
from rollcall_operator.kube.resources import DEPLOYMENTS, PODS, RL_JOBS, ROLLOUT_POOLS
from tests.unit.rollcall_operator.control.lagging_cluster import (
    POOL,
    REPLICAS,
    SPEC,
    LaggingCluster,
)
from tests.unit.rollcall_operator.control.lagging_operator import KEY
from tests.unit.rollcall_operator.plan.simulator import JOB, good_job

# Add Phase.shrink to see the shortest way to a failure; that takes minutes.
PHASES = (Phase.generate,)


def two_pools() -> list[dict[str, Any]]:
    """The job's own, and another one."""
    first = good_job(SPEC)["spec"]["rollouts"][0]
    return [first, {**first, "name": "more", "replicas": 1}]


FAILS = st.sampled_from(["", "", "before", "after"])


class LaggingOperator(RuleBasedStateMachine):
    """Chance decides what happens next; each rule is one thing that may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = LaggingCluster()
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self.cluster.settle())

    @rule(kind=st.sampled_from(KINDS), events=st.integers(1, 20))
    def watch(self, kind: object, events: int) -> None:
        """A watch reports some of what happened to its kind."""
        self.cluster.operator.deliver(kind, events)  # type: ignore[arg-type]

    @rule()
    def all_watches_but_that_of_pods(self) -> None:
        """Pods are what changes most."""
        for kind in KINDS:
            if kind != PODS:
                self.cluster.operator.deliver(kind, 1000)

    @rule()
    def all_watches(self) -> None:
        """They catch up."""
        self.cluster.operator.deliver_all()

    @rule(times=st.integers(1, 3))
    def reconcile(self, times: int) -> None:
        """Whatever the store knows."""
        for _ in range(times):
            self.loop.run_until_complete(self.cluster.operator.reconcile())

    @rule(
        seconds=st.sampled_from([0.1, 1.1, 11.0, 31.0]),
        fails=FAILS,
    )
    def reconcile_later(self, seconds: float, fails: str) -> None:
        """The operator's next write may fail, with or without its effect."""
        self.cluster.now += seconds
        self.cluster.client.fails = fails
        self.loop.run_until_complete(self.cluster.operator.reconcile())
        self.cluster.client.fails = ""

    @rule(fails=FAILS, evicted=st.booleans())
    def rollouts_are_absent_for_long(self, fails: str, evicted: bool) -> None:
        """So long that they are replaced, one at a time; all may be evicted just before."""
        for seconds in (0.0, 31.0):
            self.cluster.report(absent=2)
            for number in range(REPLICAS if evicted and seconds else 0):
                self.cluster.fail(number)
            self.reconcile_later(seconds, fails if seconds else "")
        self.reconcile(2)

    @rule(fails=FAILS)
    def a_write_fails_before_pods_are_reported(self, fails: str) -> None:
        """The job is read live, and after it from a store that may lack what was read."""
        self.reconcile_later(1.1, fails)
        self.reconcile_later(1.1, "")
        self.all_watches_but_that_of_pods()
        self.reconcile(2)

    @rule()
    def kubernetes(self) -> None:
        """Its controllers and kubelets have caught up."""
        self.cluster.controllers()
        self.cluster.kubelet()
        self.cluster.collect()

    @rule()
    def controllers(self) -> None:
        """Pods are made and deleted."""
        self.cluster.controllers()

    @rule(number=st.integers(0, 3))
    def fail(self, number: int) -> None:
        """A rollout is evicted."""
        self.cluster.fail(number)

    @rule(absent=st.integers(0, 2))
    def report(self, absent: int) -> None:
        """The coordinator reports a step; some members are absent."""
        self.cluster.report(absent=absent)

    @rule(replicas=st.integers(0, 5))
    def scale(self, replicas: int) -> None:
        """As kubectl scale does."""
        self.cluster.edit(ROLLOUT_POOLS, POOL, {"spec.replicas": replicas})

    @rule(pools=st.integers(1, 2))
    def pools(self, pools: int) -> None:
        """A user adds a second pool to the job, or takes it away."""
        self.cluster.edit(RL_JOBS, JOB, {"spec.rollouts": two_pools()[:pools]})

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        """A user suspends or resumes the job."""
        self.cluster.edit(RL_JOBS, JOB, {"spec.suspend": suspend})

    @rule()
    def restart(self) -> None:
        """Another operator takes over."""
        self.cluster.restart_operator()

    def teardown(self) -> None:
        """The faults end."""
        try:
            self.cluster.edit(ROLLOUT_POOLS, POOL, {"spec.replicas": REPLICAS})
            self.loop.run_until_complete(self.cluster.settle())
        finally:
            self.loop.close()


async def running() -> LaggingCluster:
    """All rollouts run, and the watches have reported all."""
    cluster = LaggingCluster()
    await cluster.settle()
    return cluster


async def absent_for_long(cluster: LaggingCluster) -> None:
    """Two rollouts are due to be replaced; one may be at a time."""
    cluster.report(absent=2)
    await cluster.operator.reconcile()
    cluster.operator.deliver_all()
    cluster.now += 31
    cluster.report(absent=2)


@pytest.mark.parametrize("fails", ["", "after"])
async def test_a_second_rollout_is_not_replaced_while_the_watch_lacks_the_first_ones_deletion(
    fails: str,
) -> None:
    cluster = await running()
    await absent_for_long(cluster)
    cluster.client.fails = fails
    for _ in range(5):
        cluster.now += 1.1
        await cluster.operator.reconcile()
        cluster.operator.deliver(RL_JOBS, 1000)
    assert len(cluster.deleted) == 1


async def test_a_rollout_that_was_evicted_meanwhile_is_not_deleted_by_older_facts() -> None:
    cluster = await running()
    await absent_for_long(cluster)
    for number in range(REPLICAS):
        cluster.fail(number)
    await cluster.operator.reconcile()
    assert not cluster.deleted


async def test_after_a_live_read_nothing_is_planned_from_older_facts() -> None:
    cluster = await running()
    cluster.objects.drop(PODS, f"{POOL}-0")
    cluster.report()
    cluster.now += 11
    cluster.client.fails = "after"
    await cluster.operator.reconcile()  # the answer to the status with a new step is lost
    await cluster.operator.reconcile()  # so the job is read live
    assert len(cluster.left) == 1
    for kind in KINDS:
        if kind != PODS:
            cluster.operator.deliver(kind, 1000)
    await cluster.operator.reconcile()
    assert cluster.roster is not None
    assert len(cluster.roster.members) == REPLICAS - 1


async def test_a_pool_that_was_taken_away_is_deleted_once() -> None:
    cluster = await running()
    cluster.edit(RL_JOBS, JOB, {"spec.rollouts": two_pools()})
    await cluster.settle()
    cluster.edit(RL_JOBS, JOB, {"spec.rollouts": two_pools()[:1]})
    cluster.operator.deliver(RL_JOBS, 1000)
    for _ in range(3):
        await cluster.operator.reconcile()
        cluster.operator.deliver(RL_JOBS, 1000)
        cluster.now += 0.1
    assert len(cluster.deleted) == 1


async def test_a_jobs_number_of_rollouts_gets_from_its_pool_to_the_deployment() -> None:
    cluster = await running()
    spec = {"spec.rollouts[0].replicas": REPLICAS + 1}
    cluster.edit(RL_JOBS, JOB, spec)
    for _ in range(4):
        cluster.operator.deliver_all()
        await cluster.operator.reconcile_if_asked()
    deployment = cluster.objects.find(DEPLOYMENTS, POOL)
    assert deployment is not None
    assert deployment["spec"]["replicas"] == REPLICAS + 1


async def test_events_about_a_job_that_is_gone_are_forgotten() -> None:
    cluster = await running()
    lonely = cluster.objects.find(PODS, f"{POOL}-0")
    assert lonely is not None
    for kind in KINDS:
        for each in cluster.objects.of(kind):
            cluster.objects.drop(kind, each["metadata"]["name"])
    revision = cluster.objects.revision
    for batch in range(100):
        for number in range(100):
            ready = {"type": "Ready", "status": str(bool(number % 2)), "reason": f"{batch}"}
            cluster.objects.put(PODS, {**lonely, "status": {"conditions": [ready]}})
        cluster.operator.deliver_all()
        await cluster.operator.reconcile_if_asked()
    assert cluster.objects.revision == revision + 10_000  # the operator has written nothing
    cluster.objects.drop(PODS, f"{POOL}-0")
    cluster.operator.deliver_all()
    await cluster.operator.reconcile_if_asked()
    assert not cluster.operator.reconciler._states
    assert not cluster.operator.store.identities(KEY)


@pytest.mark.slow
def test_whatever_the_watches_lack_nothing_is_lost_and_all_converges() -> None:
    run_state_machine_as_test(
        LaggingOperator,
        settings=settings(
            max_examples=25,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
