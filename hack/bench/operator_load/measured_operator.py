"""The operator as a process of its own, and what it has cost so far."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.bench.operator_load.audit_counts import AuditCounts
from tests.apiserver.cluster_user import USER
from tests.apiserver.operator_process import OperatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver.cluster import Cluster

_FLAGS = ("--reach", "direct", "--log-level", "info")
_TICKS = os.sysconf("SC_CLK_TCK")
QUIET_SECONDS = 35.0
"""Statuses of jobs that start are written within half a minute."""


class MeasuredOperator:
    """One run of the operator against a simulated cluster; all figures count from its start."""

    def __init__(self, process: OperatorProcess, counts: AuditCounts) -> None:
        self.process, self.counts = process, counts

    def cpu_seconds(self) -> float:
        """Processor time of all its threads, user and system."""
        fields = Path(f"/proc/{self.process.process.pid}/stat").read_text().rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / _TICKS

    def peak_mib(self) -> float:
        """The most memory that it had resident."""
        for line in Path(f"/proc/{self.process.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the kernel does not say how much memory the operator had")

    async def settled(self, *, quiet: float = QUIET_SECONDS, within: float = 600.0) -> None:
        """Wait until it has written nothing for `quiet` seconds; TimeoutError after `within`."""
        last, since = self.counts.read().writes(), time.monotonic()
        deadline = since + within
        while time.monotonic() - since < quiet:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the operator still writes after {within:.0f} s")
            await asyncio.sleep(0.5)
            if (now := self.counts.read().writes()) != last:
                last, since = now, time.monotonic()


@contextlib.contextmanager
def measured_operator(cluster: Cluster, *, name: str = "operator") -> Iterator[MeasuredOperator]:
    """Start it and wait until it serves; raises AssertionError if it was not healthy."""
    counts = AuditCounts(cluster.control.audit_log, user=USER).read()
    counts.requests.clear()
    log = cluster.control.folder / f"{name}.log"
    with OperatorProcess(kubeconfig=cluster.operator, log=log, flags=_FLAGS) as process:
        process.wait_until_watching()
        yield MeasuredOperator(process, counts)
        process.assert_healthy()
