"""Many pods: the most memory that the operator takes, and how long it takes after a restart."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load import many_jobs
from hack.bench.operator_load.copied_jobs import copy_first_job
from hack.bench.operator_load.measured_operator import MeasuredOperator, measured_operator

if TYPE_CHECKING:
    from tests.apiserver.cluster import Cluster

RESTART_SECONDS = 600.0
_CONTROLLERS = ("kwok", "kube-scheduler", "kube-controller-manager")


def restart_figures(cluster: Cluster, *, jobs: int) -> dict[str, Any]:
    """Jobs of two pods; the operator that made the first ends, and another one begins with all.

    Its writes are counted until nothing has been written for a while. The other controllers do not
    run meanwhile: they would take the processor for themselves, and have nothing to write either.
    """
    with measured_operator(cluster, name="first") as first:
        asyncio.run(many_jobs.operator_figures(cluster, first, jobs=1, rollouts=1))
    for name in _CONTROLLERS:
        cluster.control.stop_program(name)
    asyncio.run(copy_first_job(cluster, jobs=jobs))
    began = time.monotonic()
    with measured_operator(cluster, name="second") as second:
        seconds = _until_reconciled(second, jobs, began)
        asyncio.run(second.settled())
        return {
            "peak_mib": round(second.peak_mib(), 1),
            "restart_seconds": round(seconds, 1),
            "writes": second.counts.read().writes(),
        }


def _until_reconciled(operator: MeasuredOperator, jobs: int, began: float) -> float:
    while operator.process.reconciles() < jobs:
        if time.monotonic() - began > RESTART_SECONDS:
            raise TimeoutError(f"{operator.process.reconciles()} of {jobs} jobs reconciled")
        time.sleep(0.5)
    return time.monotonic() - began
