"""From `kubectl apply` of an RLJob to all of its children: seconds, writes, and writes when idle.

    python -m hack.bench.apply_to_children [--jobs 20] [--idle 60]

Runs the operator, with the rights of the chart, against a real etcd, API server and
controller-manager. The last line is JSON.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hack.bench.run_record import finish, run_record
from tests.apiserver.cluster import Cluster, running_cluster
from tests.apiserver.cluster_user import ClusterUser, example, open_user, operator_writes, quiet
from tests.apiserver.operator_process import OperatorProcess

CHILDREN = 5
_POLL = 0.005


async def apply_one(user: ClusterUser, name: str) -> float:
    """Seconds from before the apply until the last child is there."""
    began = time.monotonic()
    await user.apply(example(name))
    while len(await user.children(name)) < CHILDREN:
        if time.monotonic() - began > 30:
            raise TimeoutError(f"{name}: {sorted(await user.children(name))}")
        await asyncio.sleep(_POLL)
    return time.monotonic() - began


async def burst(user: ClusterUser, count: int) -> float:
    """Seconds from the first of `count` applies at once until all children are there."""
    began = time.monotonic()
    await asyncio.gather(*(apply_one(user, f"burst-{number}") for number in range(count)))
    return time.monotonic() - began


async def measure(
    cluster: Cluster, operator: OperatorProcess, *, jobs: int, idle: float
) -> dict[str, Any]:
    """All figures."""

    def writes() -> int:
        return len(operator_writes(cluster.writes()))

    async with open_user(cluster.admin, namespace="bench") as user:
        await apply_one(user, "warm-up")
        await quiet(writes)
        seconds = []
        before = writes()
        for number in range(jobs):
            seconds.append(await apply_one(user, f"job-{number}"))
            print(f"job {number}: {seconds[-1]:.3f} s", file=sys.stderr)
        await quiet(writes, seconds=2.0)
        each = (writes() - before) / jobs
        together = await burst(user, jobs)
        await quiet(writes, seconds=35.0)  # statuses of starting jobs settle within half a minute
        cpu, before = _cpu(operator), writes()
        await asyncio.sleep(idle)
        return {
            "jobs": jobs,
            "apply_to_children_seconds": {
                "median": round(statistics.median(seconds), 3),
                "max": round(max(seconds), 3),
            },
            "burst_seconds": round(together, 3),
            "writes_per_job": each,
            "idle_seconds": idle,
            "idle_jobs": 2 * jobs + 1,
            "idle_writes": writes() - before,
            "idle_cpu_fraction": round((_cpu(operator) - cpu) / idle, 4),
            "resident_mib": round(operator.metrics()["process_resident_memory_bytes"] / 2**20, 1),
        }


def _cpu(operator: OperatorProcess) -> float:
    return operator.metrics()["process_cpu_seconds_total"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--idle", type=float, default=60.0)
    options = parser.parse_args()
    run = run_record(vars(options))
    with running_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "operator.log"
        with OperatorProcess(kubeconfig=cluster.operator, log=log) as operator:
            operator.wait_until_watching()
            figures = asyncio.run(measure(cluster, operator, jobs=options.jobs, idle=options.idle))
            operator.assert_healthy()
    finish("apply-to-children", run, figures)
    slow = figures["apply_to_children_seconds"]["median"] >= 1.0
    return int(slow or figures["writes_per_job"] > 12 or figures["idle_writes"] > 0)


if __name__ == "__main__":
    sys.exit(main())
