"""Membership outlives its operators: killed, stopped and gone on, cut off from the API server.

Whatever happens, an epoch has one roster, each epoch has a cause, and in the end the roster is who
runs. What the coordinator does meanwhile by itself is tested with real processes in tests/process.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import LEASES, PODS, RL_JOBS
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.roster import Roster
from tests.apiserver import dying_operator
from tests.apiserver.cluster import Cluster, StartCluster
from tests.apiserver.cluster_user import SYSTEM, ClusterUser, eventually, example, open_user
from tests.apiserver.coordinator import Member
from tests.apiserver.kubelet import Kubelet, is_ready, kubelet, rollouts
from tests.apiserver.operator_process import OperatorProcess

pytestmark = pytest.mark.slow

POOL = "reverse-cpu"
ROUNDS = 5
OUTAGE_SECONDS = float(os.environ.get("ROLLCALL_OUTAGE_SECONDS", "10"))
LEASE = ("--lease-duration", "6", "--reach", "direct")


def job(replicas: int) -> Object:
    return example(replicas=replicas, membership={"settleSeconds": 0})


def rosters(node: Kubelet) -> list[Roster]:
    """All that ever counted with a coordinator, in order."""
    return [roster for coordinator in node.coordinators.values() for roster in coordinator.rosters]


def assert_epochs_are_sound(node: Kubelet) -> None:
    """One roster for an epoch; none goes back; none repeats the one before it; who has left stays
    away. An epoch whose operator was killed before it had handed it out is not among them.
    """
    seen = rosters(node)
    assert len({roster.epoch for roster in seen}) == len(seen)
    assert [roster.epoch for roster in seen] == sorted(roster.epoch for roster in seen)
    left: set[str] = set()
    for before, after in itertools.pairwise(seen):
        same = (before.members, before.coordinator_uid) == (after.members, after.coordinator_uid)
        assert not same or after.epoch > before.epoch + 1, after
        members = {member.pod_uid for member in after.members}
        left |= {member.pod_uid for member in before.members} - members
        assert not left & members, after


async def settled(user: ClusterUser, node: Kubelet, count: int, *, seconds: float = 60) -> None:
    """Wait until so many rollouts run, are ready, and are the roster that status reports; none
    of those that have ended is among them.
    """

    async def there() -> bool:
        pods = await user.listed(PODS, f"{labels.ROLE}={labels.ROLLOUT}")
        alive = [p for p in pods if p["status"]["phase"] == "Running"]
        roster = node.coordinator.roster if node.coordinators else None
        group = (await user.get(RL_JOBS, "reverse")).get("status", {}).get("syncGroups")
        if roster is None or not group or len(alive) != count or not all(map(is_ready, alive)):
            return False
        named = {member.pod_uid for member in roster.members}
        reported = (group[0]["epoch"], group[0]["rosterDigest"])
        running = {pod["metadata"]["uid"] for pod in alive}
        return (
            named == running
            and not running & node.failed
            and reported == (roster.epoch, roster.digest)
        )

    await eventually(there, f"{count} rollouts are ready, and the roster", seconds=seconds)
    status = (await user.get(RL_JOBS, "reverse"))["status"]
    for record in status["syncGroups"][0]["history"]:
        assert record["cause"]
        assert record["message"], record
    assert_epochs_are_sound(node)


# --- killed --------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
async def test_operators_killed_in_a_storm_of_changes_leave_sound_epochs(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    flags = (
        "--kubeconfig",
        str(cluster.operator),
        "--no-leader-elect",
        "--namespace",
        user.namespace,
        "--reach",
        "direct",
    )
    async with kubelet(user) as node:
        await user.apply(job(3))
        for number in range(ROUNDS):
            log = log_folder / f"round-{number}"
            doomed = dying_operator.start(when="after", write=sys.maxsize, log=log, flags=flags)
            try:
                await eventually(lambda log=log: watching(log), "the operator watches")  # type: ignore[misc]
                await storm(user, dice)
            finally:
                doomed.kill()
                doomed.join(10)
                doomed.close()
            assert_epochs_are_sound(node)
        log = log_folder / "last"
        with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags[2:]) as last:
            user.kubectl("scale", f"rolloutpool/{POOL}", "--replicas=4")
            await settled(user, node, 4)
            last.assert_healthy()
    print(f"{len(rosters(node))} epochs")


async def watching(log: Path) -> bool:
    return log.exists() and "Watching" in log.read_text()


async def storm(user: ClusterUser, dice: random.Random) -> None:
    """Scale the pool, kill a rollout, or the trainer, a few times within a second or so."""
    for _ in range(dice.randint(1, 4)):
        kind = dice.choice(("scale", "scale", "rollout", "trainer"))
        if kind == "scale" and await user.children("reverse"):
            with contextlib.suppress(AssertionError):  # there is no pool yet
                count = dice.randint(1, 6)
                user.kubectl("scale", f"rolloutpool/{POOL}", f"--replicas={count}")
        else:
            role = labels.TRAINER if kind == "trainer" else labels.ROLLOUT
            pods = await user.listed(PODS, f"{labels.ROLE}={role}")
            if pods:
                await user.delete(PODS, dice.choice(pods)["metadata"]["name"])
        await asyncio.sleep(dice.uniform(0.0, 0.5))


# --- stopped, and gone on ------------------------------------------------------------------------


@pytest.mark.timeout(200)
async def test_a_holder_that_was_stopped_and_goes_on_does_no_harm_to_its_successor(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    await user.client.delete(LEASES, namespace=SYSTEM, name="rollcall-operator")
    async with kubelet(user) as node:
        with contextlib.ExitStack() as stack:
            first, second = (
                stack.enter_context(
                    OperatorProcess(kubeconfig=cluster.operator, log=log_folder / name, flags=LEASE)
                )
                for name in ("a", "b")
            )
            holder, standby = await sorted_by_lease(first, second)
            await user.apply(job(2))
            await settled(user, node, 2)
            holder.process.send_signal(signal.SIGSTOP)
            await user.apply(job(3))  # the stopped one has this event in its socket
            began = time.monotonic()
            standby.wait_until_watching()
            print(f"stopped to taken over: {time.monotonic() - began:.1f} s")
            await settled(user, node, 3)
            holder.process.send_signal(signal.SIGCONT)
            await user.apply(job(4))
            await settled(user, node, 4)
            assert holder.process.wait(20) == 1
            assert any("Exiting" in line["message"] for line in holder.lines())
            standby.assert_healthy()
            await settled(user, node, 4)


async def sorted_by_lease(
    one: OperatorProcess, other: OperatorProcess
) -> tuple[OperatorProcess, OperatorProcess]:
    """The one that watches first, and the one that stands by."""

    async def found() -> tuple[OperatorProcess, OperatorProcess] | None:
        for holder, standby in ((one, other), (other, one)):
            watches = any("Watching" in line["message"] for line in holder.lines())
            waits = any("Standing by" in line["message"] for line in standby.lines())
            if watches and waits:
                return holder, standby
        return None

    return await eventually(found, "one holds the Lease and the other waits", seconds=60)


# --- cut off -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_cluster(start_cluster: StartCluster) -> Iterator[Cluster]:
    with start_cluster() as running:
        yield running


@contextlib.asynccontextmanager
async def kept_running(cluster: Cluster, log: Path) -> AsyncIterator[list[OperatorProcess]]:
    """An operator that is started again whenever it ends, as a kubelet would; all runs of it."""
    runs = [OperatorProcess(kubeconfig=cluster.operator, log=log / "run-0", flags=LEASE)]

    async def restart() -> None:
        while True:
            await asyncio.sleep(0.2)
            if runs[-1].process.poll() is not None:
                assert runs[-1].process.returncode == 1, runs[-1].log.read_text()
                path = log / f"run-{len(runs)}"
                runs.append(OperatorProcess(kubeconfig=cluster.operator, log=path, flags=LEASE))

    task = asyncio.create_task(restart())
    try:
        yield runs
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for run in runs:
            run.close()


@pytest.mark.timeout(OUTAGE_SECONDS + 240)
async def test_pods_that_die_while_the_api_server_is_away_cost_epochs_only_after_it(
    own_cluster: Cluster, log_folder: Path
) -> None:
    async with (
        open_user(own_cluster.admin, namespace="away") as user,
        kubelet(user) as node,
        kept_running(own_cluster, log_folder) as runs,
    ):
        await user.apply(job(3))
        await settled(user, node, 3)
        before = list(rosters(node))
        first, second, _ = await rollouts(user, 3)
        own_cluster.control.stop_apiserver()
        try:
            for dead in (first, second):
                await asyncio.sleep(OUTAGE_SECONDS / 2)
                node.failed.add(dead)
                node.coordinator.say(dict.fromkeys(node.failed, Member(MemberState.SUSPECT)))
            assert rosters(node) == before
        finally:
            own_cluster.control.start_apiserver()
        await settled(user, node, 3, seconds=90)
        opened = len(rosters(node)) - len(before)
        print(f"{opened} epochs, {len(runs)} runs of the operator")
        assert 1 <= opened <= 4, "two lost, two joined"
