"""What jobs cost that are there: with nothing to do, with coordinators that do not answer, and
with a step each second.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from hack.bench.operator_load import many_jobs
from hack.bench.operator_load.job_manifests import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hack.bench.operator_load.measured_operator import MeasuredOperator
    from tests.apiserver.cluster import Cluster

IDLE_SECONDS, TRAINING_SECONDS = 300.0, 120.0
CONNECT_SECONDS = 120.0
SILENT_SECONDS = 90.0
"""How long coordinators have been silent before that is measured."""
_STREAMS = "rollcall_coordinator_streams"


async def idle_figures(
    cluster: Cluster, operator: MeasuredOperator, *, jobs: int
) -> dict[str, Any]:
    """Coordinators first send heartbeats alone, then do not answer."""
    await many_jobs.operator_figures(cluster, operator, jobs=jobs, rollouts=1)
    with fake_coordinators(cluster, "--no-steps") as process:
        await connected(operator, jobs)
        await operator.settled()
        figures = await _over(operator, IDLE_SECONDS)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(SILENT_SECONDS)
        await operator.settled()
        silent = await _over(operator, IDLE_SECONDS)
    return {
        "cpu_share": figures["cpu_share"],
        "writes": figures["writes"],
        "silent_cpu_share": silent["cpu_share"],
        "silent_writes": silent["writes"],
    }


async def training_figures(
    cluster: Cluster, operator: MeasuredOperator, *, jobs: int
) -> dict[str, Any]:
    """Each coordinator reports a step each second."""
    await many_jobs.operator_figures(cluster, operator, jobs=jobs, rollouts=1)
    with fake_coordinators(cluster):
        await connected(operator, jobs)
        await asyncio.sleep(SILENT_SECONDS)  # epochs, sessions and gates are written meanwhile
        figures = await _over(operator, TRAINING_SECONDS)
    return {
        "cpu_share": figures["cpu_share"],
        "reads_per_second": round(figures["reads"] / TRAINING_SECONDS, 3),
        "writes_per_second": round(figures["writes"] / TRAINING_SECONDS, 2),
    }


@contextlib.contextmanager
def fake_coordinators(cluster: Cluster, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a coordinator for each trainer pod."""
    command = [sys.executable, "-m", "hack.bench.operator_load.fake_coordinators"]
    process = subprocess.Popen([*command, str(cluster.admin), NAMESPACE, *options])
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def connected(operator: MeasuredOperator, jobs: int) -> None:
    """Wait until the operator has a stream of so many coordinators; TimeoutError."""
    async with asyncio.timeout(CONNECT_SECONDS):
        while True:
            with contextlib.suppress(TimeoutError):  # it may be late with all that connect
                if operator.process.metrics(_STREAMS)[_STREAMS] >= jobs:
                    return
            await asyncio.sleep(1.0)


async def _over(operator: MeasuredOperator, seconds: float) -> dict[str, Any]:
    cpu, counts = operator.cpu_seconds(), operator.counts.read()
    writes, reads = counts.writes(), counts.reads()
    await asyncio.sleep(seconds)
    return {
        "cpu_share": round((operator.cpu_seconds() - cpu) / seconds, 4),
        "writes": counts.read().writes() - writes,
        "reads": counts.reads() - reads,
    }
