"""Many pods: the most memory that the operator takes, and how long it takes after a restart."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load import many_jobs
from hack.bench.operator_load.measured_operator import measured_operator

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

RESTART_SECONDS = 600.0


def restart_figures(cluster: Cluster, *, jobs: int) -> dict[str, Any]:
    """Jobs of two pods; the operator that made them ends, and another one begins."""
    with measured_operator(cluster, name="first") as first:
        asyncio.run(many_jobs.operator_figures(cluster, first, jobs=jobs, rollouts=1))
        peak = first.peak_mib()
    began = time.monotonic()
    with measured_operator(cluster, name="second") as second:
        while second.process.reconciles() < jobs:
            if time.monotonic() - began > RESTART_SECONDS:
                raise TimeoutError(f"{second.process.reconciles()} of {jobs} jobs reconciled")
            time.sleep(0.5)
        seconds = time.monotonic() - began
        return {
            "peak_mib": round(max(peak, second.peak_mib()), 1),
            "restart_seconds": round(seconds, 1),
            "writes": second.counts.read().writes(),
        }
