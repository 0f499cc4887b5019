"""Pods of one job that change all the time: how long other jobs wait for the operator."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import aiohttp

from hack.bench.operator_load import etcd_gateway, many_jobs
from hack.bench.operator_load.job_manifests import NAMESPACE, job
from rollcall_operator.api import labels
from rollcall_operator.kube.resources import DEPLOYMENTS, PODS, RL_JOBS, ROLLOUT_POOLS
from rollcall_operator.kube.watch import Watch
from tests.apiserver.cluster_user import open_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.bench.operator_load.measured_operator import MeasuredOperator
    from rollcall_operator.kube.client import Object
    from tests.apiserver.cluster import Cluster
    from tests.apiserver.cluster_user import ClusterUser

EVENTS_PER_SECOND = 1000
SECONDS = 60.0
_SENDERS = 16
OTHERS, _ROLLOUTS = 20, 63
_EVERY = 0.2


async def storm_figures(cluster: Cluster, operator: MeasuredOperator) -> dict[str, Any]:
    """Seconds from an edit of another job's pool until its Deployment follows, and of them those
    of the edit's own request, which the operator has no part in.
    """
    await many_jobs.operator_figures(cluster, operator, jobs=OTHERS, rollouts=1)
    async with open_user(cluster.admin, namespace=NAMESPACE, keep=True) as user:
        await user.client.create(RL_JOBS, job(99_999, rollouts=_ROLLOUTS))
        await operator.settled()
        pods = await user.listed(
            PODS, f"{labels.JOB}={job(99_999, rollouts=1)['metadata']['name']}"
        )
        stop = time.monotonic() + SECONDS
        storm = asyncio.create_task(_storm(cluster.control.etcd, pods, stop))
        requests, seconds = zip(*await edits(user, stop), strict=True)
        events = await storm
    return {
        "p99_seconds": p99(seconds),
        "median_seconds": round(statistics.median(seconds), 3),
        "request_p99_seconds": p99(requests),
        "request_median_seconds": round(statistics.median(requests), 3),
        "edits": len(seconds),
        "events_per_second": round(events / SECONDS),
    }


def p99(seconds: Sequence[float]) -> float:
    return round(statistics.quantiles(seconds, n=100)[98], 3)


async def _storm(etcd: str, pods: tuple[Object, ...], stop: float) -> int:
    """Events of pods until `stop`, EVENTS_PER_SECOND if the machine can; returns how many.

    What the API server holds of a pod is written into its etcd again, by etcd's JSON gateway: each
    time all watches report the pod with a new resourceVersion. Requests to the API server would
    cost it more than the events.
    """
    keys = [f"/registry/pods/{NAMESPACE}/{each['metadata']['name']}".encode() for each in pods]
    counts = [0] * _SENDERS
    async with aiohttp.ClientSession(etcd) as session:
        values = [pair for key in keys for pair in await etcd_gateway.stored(session, key)]
        await asyncio.gather(
            *(_write_again(session, values, counts, number, stop) for number in range(_SENDERS))
        )
    return sum(counts)


async def _write_again(
    session: aiohttp.ClientSession,
    values: list[etcd_gateway.Pair],
    counts: list[int],
    sender: int,
    stop: float,
) -> None:
    """Its share of EVENTS_PER_SECOND."""
    pause, due = _SENDERS / EVENTS_PER_SECOND, time.monotonic()
    for number in itertools.count():
        if time.monotonic() > stop:
            return
        value = values[(sender + number * _SENDERS) % len(values)]
        await etcd_gateway.ask(session, "put", value)
        counts[sender] += 1
        due += pause
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def edits(user: ClusterUser, stop: float) -> list[tuple[float, float]]:
    """Pools of the other jobs go from one replica to two and back, one edit at a time.

    Of each, the seconds until its request is answered, and until the Deployment follows.
    """
    wanted: dict[str, tuple[int, asyncio.Event]] = {}
    there: dict[str, int] = {}

    def changed(_: object, now: tuple[str, int] | None) -> None:
        if now is not None:
            there[now[0]] = now[1]
            if now[0] in wanted and wanted[now[0]][0] == now[1]:
                wanted[now[0]][1].set()

    watch = Watch(
        user.client,
        DEPLOYMENTS,
        namespace=NAMESPACE,
        reduce=lambda found: (found["metadata"]["name"], found["spec"]["replicas"]),
        changed=changed,
        delay=lambda _: 1.0,
    )
    task = asyncio.create_task(watch.run())
    made: list[tuple[float, float]] = []
    try:
        await watch.listed.wait()
        for number in itertools.count():
            began = time.monotonic()
            if began > stop:
                return made
            other = job(number % OTHERS, rollouts=1)["metadata"]["name"]
            pool = labels.pool_name(other, "cpu")
            # Earlier edits may have ended in the middle of a round.
            replicas, followed = 1 if there[pool] > 1 else 2, asyncio.Event()
            wanted[pool] = (replicas, followed)
            await user.edit(ROLLOUT_POOLS, pool, {"spec": {"replicas": replicas}})
            answered = time.monotonic()
            async with asyncio.timeout(60):
                await followed.wait()
            made.append((answered - began, time.monotonic() - began))
            await asyncio.sleep(_EVERY)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return made
