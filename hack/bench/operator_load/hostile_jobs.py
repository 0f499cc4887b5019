"""Jobs whose coordinators flood the operator: how long other jobs wait for it, and its memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load import many_jobs
from hack.bench.operator_load.job_manifests import NAMESPACE, job
from hack.bench.operator_load.steady_jobs import connected, fake_coordinators
from hack.bench.operator_load.storm import OTHERS, edits, p99
from tests.apiserver.cluster_user import open_user

if TYPE_CHECKING:
    from hack.bench.operator_load.measured_operator import MeasuredOperator
    from tests.apiserver.cluster import Cluster

SECONDS, SETTLE_SECONDS = 120.0, 30.0
_REFUSED = "rollcall_snapshots_refused_total"


async def hostile_figures(
    cluster: Cluster, operator: MeasuredOperator, *, jobs: int, hostile: int
) -> dict[str, Any]:
    """Edits of honest jobs' pools while all coordinators are honest, then while the last `hostile`
    of them attack the operator in the ways of hack.attacks.hostile_service.
    """
    if jobs < OTHERS + hostile:
        raise ValueError(f"{OTHERS} honest jobs are edited beside the {hostile} hostile ones")
    await many_jobs.operator_figures(cluster, operator, jobs=jobs, rollouts=1)
    names = [
        str(job(number, rollouts=1)["metadata"]["name"]) for number in range(jobs - hostile, jobs)
    ]
    with fake_coordinators(cluster, "--but", *names):
        with fake_coordinators(cluster, "--only", *names):
            await connected(operator, jobs)
            await asyncio.sleep(SETTLE_SECONDS)  # epochs, sessions and gates are written meanwhile
            alone = await _figures(cluster, operator)
        with fake_coordinators(cluster, "--only", *names, "--hostile"):
            beside = await _figures(cluster, operator)
    cut_off = operator.process.metrics(_REFUSED).get(f'{_REFUSED}{{reason="too_much"}}', 0)
    return {
        **beside,
        **{f"alone_{name}": value for name, value in alone.items()},
        "memory_ratio": round(beside["peak_mib"] / alone["peak_mib"], 3),
        "cut_off": round(cut_off),
    }


async def _figures(cluster: Cluster, operator: MeasuredOperator) -> dict[str, float]:
    operator.forget_peak()
    cpu, began = operator.cpu_seconds(), time.monotonic()
    async with open_user(cluster.admin, namespace=NAMESPACE, keep=True) as user:
        requests, seconds = zip(*await edits(user, began + SECONDS), strict=True)
    share = (operator.cpu_seconds() - cpu) / (time.monotonic() - began)
    return {
        "p99_seconds": p99(seconds),
        # Once the API server has answered the edit.
        "reconcile_p99_seconds": p99([a - b for a, b in zip(seconds, requests, strict=True)]),
        "median_seconds": round(statistics.median(seconds), 3),
        "request_p99_seconds": p99(requests),
        "edits": len(seconds),
        "cpu_share": round(share, 3),
        "peak_mib": round(operator.peak_mib(), 1),
    }
