"""All jobs at once, until their pods are ready: by a bare client, then by the operator."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load.job_manifests import NAMESPACE, job, objects_of
from rollcall_operator.kube.resources import PODS, SECRETS, resource_of
from rollcall_operator.kube.watch import Watch
from tests.apiserver.cluster_user import ClusterUser, open_user
from tests.apiserver.kubelet import is_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from hack.bench.operator_load.measured_operator import MeasuredOperator
    from rollcall_operator.kube.client import KubeClient, Object
    from tests.apiserver.cluster import Cluster

CLIENTS = 10
"""Requests at a time; the operator reconciles as many jobs at a time."""
SECONDS_PER_JOB, SECONDS_PER_POD = 1.0, 0.2  # how long a measurement may take at most


async def bare_client_figures(cluster: Cluster, *, jobs: int, rollouts: int) -> dict[str, float]:
    """Seconds for a client that creates each job's objects one after the other, and the processor
    time of this process for it, which counts the pods beside.
    """
    async with open_user(cluster.admin, namespace=NAMESPACE) as user:
        work = [objects_of(job(number, rollouts=rollouts)) for number in range(jobs)]
        cpu = time.process_time()
        seconds = await _until_ready(user, work, pods=jobs * (1 + rollouts))
        cpu = time.process_time() - cpu
    return {
        "bare_seconds": round(seconds, 2),
        "bare_cpu_ms_per_job": round(cpu / jobs * 1000, 2),
    }


async def operator_figures(
    cluster: Cluster, operator: MeasuredOperator, *, jobs: int, rollouts: int
) -> dict[str, Any]:
    """Seconds until all pods are ready, and the costs of a job until nothing is written."""
    async with open_user(cluster.admin, namespace=NAMESPACE, keep=True) as user:
        cpu, writes = operator.cpu_seconds(), operator.counts.read().writes()
        reads = operator.counts.reads()
        work = [[job(number, rollouts=rollouts)] for number in range(jobs)]
        seconds = await _until_ready(user, work, pods=jobs * (1 + rollouts))
        when_ready = operator.cpu_seconds() - cpu
        await operator.settled()
        print(dict(operator.counts.requests), file=sys.stderr)
        return {
            "seconds": round(seconds, 2),
            "cpu_ms_per_job": round((operator.cpu_seconds() - cpu) / jobs * 1000, 2),
            "cpu_ms_per_job_when_ready": round(when_ready / jobs * 1000, 2),
            "writes_per_job": round((operator.counts.writes() - writes) / jobs, 2),
            "reads_per_job": round((operator.counts.reads() - reads) / jobs, 3),
            "reconciles_per_job": round(operator.process.reconciles() / jobs, 2),
            "peak_mib": round(operator.peak_mib(), 1),
        }


async def _until_ready(user: ClusterUser, work: list[list[Object]], *, pods: int) -> float:
    """Each list is created in its order, CLIENTS lists at a time."""
    async with counted_pods(user.client, namespace=NAMESPACE) as count:
        began = time.monotonic()
        pending = iter(work)
        await asyncio.gather(*(_create_all(user, pending) for _ in range(CLIENTS)))
        created = time.monotonic() - began
        seconds = len(work) * SECONDS_PER_JOB + pods * SECONDS_PER_POD + 60
        await count.reaches(pods, seconds=seconds)
        whole = time.monotonic() - began
    print(f"created in {created:.1f} s, {pods} pods ready in {whole:.1f} s", file=sys.stderr)
    return whole


async def _create_all(user: ClusterUser, pending: Iterable[list[Object]]) -> None:
    for bodies in pending:
        for body in bodies:
            kind = body["kind"]
            resource = SECRETS if kind == SECRETS.kind else resource_of(kind)
            await user.client.create(resource, body)


class PodCount:
    """How many pods of a namespace are ready, as long as `watch` runs."""

    def __init__(self, client: KubeClient, *, namespace: str) -> None:
        self.ready = 0
        self._changed = asyncio.Event()
        self.watch: Watch[bool] = Watch(
            client,
            PODS,
            namespace=namespace,
            reduce=is_ready,
            changed=self._count,
            delay=lambda _: 1.0,
        )

    async def reaches(self, wanted: int, *, seconds: float) -> None:
        """Wait until so many are ready; TimeoutError with how many were."""
        try:
            async with asyncio.timeout(seconds):
                while self.ready != wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{self.ready} of {wanted} pods ready in {seconds:.0f} s") from error

    def _count(self, before: bool | None, now: bool | None) -> None:
        self.ready += bool(now) - bool(before)
        self._changed.set()


@contextlib.asynccontextmanager
async def counted_pods(client: KubeClient, *, namespace: str) -> AsyncIterator[PodCount]:
    """Follows the pods until the context ends."""
    count = PodCount(client, namespace=namespace)
    task = asyncio.create_task(count.watch.run())
    try:
        await count.watch.listed.wait()
        yield count
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
