"""The operator as a process of its own, and what it has cost so far."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.apiserver.cluster_user import USER
from tests.apiserver.operator_process import OperatorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apiserver.cluster import Cluster

_FLAGS = ("--reach", "direct", "--log-level", "info")
_TICKS = os.sysconf("SC_CLK_TCK")
QUIET_SECONDS = 35.0
"""Statuses of jobs that start are written within half a minute."""
_READS = frozenset({"get", "list"})
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_ASIDE = frozenset({"leases", "events", "serviceaccounts/token"})


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

    def forget_peak(self) -> None:
        """Let `peak_mib` begin anew, at what is resident now."""
        Path(f"/proc/{self.process.process.pid}/clear_refs").write_text("5")

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


class AuditCounts:
    """`requests` by (verb, resource with subresource); reads only what was appended since."""

    def __init__(self, log: Path, *, user: str) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self._log, self._user, self._offset = log, user, 0

    def read(self) -> AuditCounts:
        """Take in what the log has got meanwhile; returns itself."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):  # the rest comes
                    break
                self._offset += len(line)
                self._count(json.loads(line))
        return self

    def writes(self) -> int:
        """All but those of the Lease and of events; a token is no object: the server keeps none."""
        return self._sum(_WRITES)

    def reads(self) -> int:
        """GETs and LISTs; a WATCH that is opened again is none."""
        return self._sum(_READS)

    def _sum(self, verbs: frozenset[str]) -> int:
        return sum(
            count
            for (verb, resource), count in self.requests.items()
            if verb in verbs and resource not in _ASIDE
        )

    def _count(self, event: dict[str, object]) -> None:
        user, about = event["user"], event.get("objectRef") or {}
        if not isinstance(user, dict) or not isinstance(about, dict):
            raise TypeError(f"not an audit event: {event}")
        if user["username"] == self._user and event["stage"] != "ResponseStarted":
            parts = (about.get("resource", "-"), about.get("subresource"))
            self.requests[str(event["verb"]), "/".join(str(p) for p in parts if p)] += 1
