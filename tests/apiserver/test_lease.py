"""Two operators and one Lease: one acts, the other waits, and takes over."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from rollcall_operator.kube.resources import LEASES, SERVICES
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    SYSTEM,
    ClusterUser,
    all_children,
    example,
    writes_settled,
)
from tests.apiserver.operator_process import OperatorProcess

NAME = "rollcall-operator"  # the only one that the chart's Role names
FLAGS = ("--lease-duration", "6")


def start(cluster: Cluster, folder: Path, name: str, *more: str) -> OperatorProcess:
    return OperatorProcess(kubeconfig=cluster.operator, log=folder / name, flags=(*FLAGS, *more))


@pytest.fixture(autouse=True)
async def no_lease(user: ClusterUser) -> None:
    """The Lease is free: an earlier test's holder may have been killed."""
    await user.client.delete(LEASES, namespace=SYSTEM, name=NAME)


async def holder(user: ClusterUser) -> str:
    lease = await user.client.get(LEASES, namespace=SYSTEM, name=NAME)
    return str(lease["spec"]["holderIdentity"])


async def test_one_acts_and_the_other_takes_over_when_it_is_killed(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    with start(cluster, log_folder, "a") as first:
        first.wait_until_watching()
        with start(cluster, log_folder, "b") as second:
            second.wait_for_log("Standing by")
            second.wait_for_log("Listed")
            assert second.fetch("/readyz")[0] == 200  # a standby is ready to take over
            await user.apply(example("one"))
            await all_children(user, "one")
            assert not any("Applied" in line["message"] for line in second.lines())
            before = await holder(user)

            first.kill()
            killed = time.monotonic()
            await user.apply(example("two"))
            await all_children(user, "two")
            seconds = time.monotonic() - killed
            print(f"killed to the other's first children: {seconds:.1f} s")
            assert seconds < 6 + 2 * 1.2 * 0.8 + 4
            assert await holder(user) != before


async def test_a_standby_has_listed_all_and_takes_up_what_happened_before_it_leads(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    await user.apply(example())
    with start(cluster, log_folder, "a") as first:
        first.wait_until_watching()
        await all_children(user)
        with start(cluster, log_folder, "b") as second:
            second.wait_for_log("Listed", seconds=15)
            first.kill()
            await user.delete(SERVICES, "reverse-trainer")
            second.wait_until_watching()
            await all_children(user)
            messages = [line["message"] for line in second.lines()]
            in_order = ("Standing by", "Listed", "acquired", "the former leader wrote", "Watching")
            steps = [step for text in messages for step in in_order if step in text]
            assert sorted(steps, key=in_order.index) == steps
            assert set(steps) == set(in_order)


async def test_a_graceful_end_hands_the_lease_over_at_once(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    with start(cluster, log_folder, "a") as first:
        first.wait_until_watching()
        with start(cluster, log_folder, "b") as second:
            second.wait_for_log("Standing by")
            began = time.monotonic()
            assert first.terminate() == 0
            stopped = time.monotonic() - began
            second.wait_until_watching()
            print(f"SIGTERM to exit {stopped:.1f} s, to the other {time.monotonic() - began:.1f} s")
            assert stopped < 5.0
            await user.apply(example())
            await all_children(user)


async def test_an_operator_that_loses_the_lease_exits_non_zero(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    with start(cluster, log_folder, "a", "--drain", "1") as first:
        first.wait_until_watching()
        usurper = {"holderIdentity": "usurper", "leaseDurationSeconds": 3600}
        # Without a resourceVersion: the holder may renew at this very moment.
        await user.client.merge(LEASES, namespace=SYSTEM, name=NAME, patch={"spec": usurper})
        async with asyncio.timeout(10):
            while first.process.poll() is None:
                await asyncio.sleep(0.05)
        assert first.process.returncode == 1
        assert any("taken by usurper" in line["message"] for line in first.lines())


async def test_even_without_a_lease_a_second_operator_is_harmless(
    user: ClusterUser, cluster: Cluster, log_folder: Path
) -> None:
    flags = ("--no-leader-elect", "--namespace", user.namespace)
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                OperatorProcess(kubeconfig=cluster.operator, log=log_folder / name, flags=flags)
            )
            for name in ("a", "b")
        ]
        for operator in both:
            operator.wait_until_watching()
        jobs = [f"job-{number}" for number in range(5)]
        for job in jobs:
            await user.apply(example(job))
        for job in jobs:
            await all_children(user, job)
        writes = await writes_settled(user, cluster)
        made = [text for text in writes if text.startswith("patch configmaps/") and "201" in text]
        assert len(made) == len(jobs)
        for operator in both:
            operator.assert_healthy()
            assert operator.terminate() == 0


async def test_a_namespace_that_is_not_there_yet_is_no_reason_to_die(
    cluster: Cluster, log_folder: Path, user: ClusterUser
) -> None:
    other = ("--no-leader-elect", "--namespace", "nowhere")
    with OperatorProcess(
        kubeconfig=cluster.operator, log=log_folder / "log", flags=other
    ) as waiting:
        waiting.wait_until_watching()
        assert waiting.process.poll() is None


@pytest.mark.parametrize("flag", ["--kubeconfig=/nowhere", "--workers=none"])
def test_bad_settings_are_another_exit_status(
    cluster: Cluster, log_folder: Path, flag: str
) -> None:
    with OperatorProcess(
        kubeconfig=cluster.operator, log=log_folder / "log", flags=(flag,)
    ) as wrong:
        assert wrong.process.wait(30) == 2
