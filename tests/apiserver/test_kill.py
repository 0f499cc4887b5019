"""SIGKILL of the operator at each of its writes: the next one reaches the same state.

What needs running pods (one epoch with all members) is tested end to end.
"""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import RL_JOBS
from tests.apiserver import dying_operator
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    all_children,
    eventually,
    example,
    open_user,
    operator_writes,
    quiet,
    writes_settled,
)
from tests.apiserver.operator_process import OperatorProcess

pytestmark = pytest.mark.slow

CREATION, SCALING = 9, 4
"""Writes of an undisturbed start, and of a job's new number of rollouts."""
AT_ONCE = 4
ROUNDS = 4

_OWN = {
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "namespace",
    "generation",
    "ownerReferences",
}


@dataclass(frozen=True, slots=True)
class Death:
    """Where an operator dies."""

    when: str
    write: int

    @property
    def namespace(self) -> str:
        return f"killed-{self.when}-{self.write}"

    @property
    def scaling(self) -> bool:
        """Whether it dies while a job is scaled rather than created."""
        return self.write > CREATION


DEATHS = tuple(
    Death(when, write) for write in range(1, CREATION + SCALING + 1) for when in ("before", "after")
)


def comparable(body: Object) -> Any:
    """An object without what differs between two namespaces."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: clean(v) for k, v in sorted(value.items()) if k not in _OWN}
        if isinstance(value, list):
            return [clean(item) for item in value]
        return value

    kept = {"metadata": body["metadata"], "spec": body.get("spec")}
    kept["metadata"] = {
        k: v for k, v in body["metadata"].items() if k != "annotations" and k not in _OWN
    }
    return clean(kept)


def same(children: dict[str, Object], namespace: str, uid: str) -> dict[str, str]:
    """Children as text, with the namespace and the job's uid replaced."""

    def text(child: Object) -> str:
        found = repr(comparable(child)).replace(namespace, "NS").replace(uid, "UID")
        return found.replace(uid[:8], "UI")  # in the token's name

    return {name: text(child) for name, child in children.items()}


async def converged(user: ClusterUser, *, replicas: int) -> dict[str, str]:
    """Wait until all is there and the operator has nothing more to do; the children as text."""

    async def there() -> bool:
        children = await all_children(user)
        status = (await user.get(RL_JOBS, "reverse")).get("status") or {}
        wanted = children["Deployment/reverse-cpu"]["spec"]["replicas"] == replicas
        return wanted and status.get("phase") == "Starting"

    await eventually(there, f"{user.namespace} has converged", seconds=90)
    job = await user.get(RL_JOBS, "reverse")
    return same(await user.children("reverse"), user.namespace, job["metadata"]["uid"])


@contextlib.asynccontextmanager
async def many(cluster: Cluster, names: list[str]) -> AsyncIterator[dict[str, ClusterUser]]:
    """Several users."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(open_user(cluster.admin, namespace=name))
            for name in names
        }


async def die(cluster: Cluster, user: ClusterUser, death: Death, folder: Path) -> None:
    """Run an operator for this namespace alone until it is killed where it should be."""
    log = folder / death.namespace
    process = dying_operator.start(
        when=death.when,
        write=death.write,
        log=log,
        flags=(
            "--kubeconfig",
            str(cluster.operator),
            "--no-leader-elect",
            "--namespace",
            user.namespace,
        ),
    )
    try:
        await user.apply(example())
        if death.scaling:
            await all_children(user)
            await writes_settled(user, cluster)
            await user.apply(example(replicas=5))
        async with asyncio.timeout(60):
            while process.exitcode is None:
                await asyncio.sleep(0.02)
        assert process.exitcode == -signal.SIGKILL, log.read_text()
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{death}: {error}: {log.read_text()[-3000:]}") from error
    finally:
        process.kill()
        process.join(10)
        process.close()
    if not death.scaling:
        await user.apply(example(replicas=5))  # while no operator runs


@pytest.mark.timeout(300)
async def test_killed_at_every_write_the_world_converges_to_the_same(
    cluster: Cluster, log_folder: Path
) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(user: ClusterUser, death: Death) -> None:
        async with limit:
            await die(cluster, user, death, log_folder)

    names = [death.namespace for death in DEATHS]
    async with many(cluster, ["undisturbed", *names]) as users:
        began = time.monotonic()
        await asyncio.gather(*(one(users[death.namespace], death) for death in DEATHS))
        print(f"{len(DEATHS)} deaths in {time.monotonic() - began:.0f} s")
        await users["undisturbed"].apply(example(replicas=5))
        log = log_folder / "successor"
        flags = ("--no-leader-elect",)
        with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags) as successor:
            wanted = await converged(users["undisturbed"], replicas=5)
            for death in DEATHS:
                assert await converged(users[death.namespace], replicas=5) == wanted, death
            await quiet(lambda: len(operator_writes(cluster.writes())))
            successor.assert_healthy()
            assert successor.terminate() == 0


@pytest.mark.timeout(300)
async def test_killed_at_random_moments_while_jobs_come_and_are_scaled(
    cluster: Cluster, user: ClusterUser, log_folder: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    jobs = [f"job-{number}" for number in range(6)]
    flags = ("--no-leader-elect", "--namespace", user.namespace)
    for round_ in range(ROUNDS):
        log = log_folder / f"round-{round_}"
        doomed = dying_operator.start(
            when="after",
            write=sys.maxsize,
            log=log,
            flags=("--kubeconfig", str(cluster.operator), *flags),
        )

        async def watching(log: Path = log) -> bool:
            return log.exists() and "Watching" in log.read_text()

        try:
            await eventually(watching, "the operator watches", seconds=60)
            for name in jobs[: 3 + round_]:
                await user.apply(example(name, replicas=1 + (round_ + len(name)) % 4))
            await asyncio.sleep(dice.uniform(0.0, 0.6))
        finally:
            doomed.kill()
            doomed.join(10)
            doomed.close()
    log = log_folder / "last"
    with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=flags) as last:
        for name in jobs:
            wanted = 1 + (ROUNDS - 1 + len(name)) % 4
            await all_children(user, name)

            async def scaled(name: str = name, wanted: int = wanted) -> bool:
                children = await user.children(name)
                return bool(children[f"Deployment/{name}-cpu"]["spec"]["replicas"] == wanted)

            await eventually(scaled, f"{wanted} rollouts of {name}")
        last.assert_healthy()
        assert last.terminate() == 0
