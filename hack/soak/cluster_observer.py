"""Looks at the job all the time, from the machine and through the API, and keeps what it saw."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from hack.cluster.errors import KubectlError
from hack.soak import host_inspection
from hack.soak.log_reader import LogReader
from hack.soak.metrics_reader import MetricsReader
from hack.soak.soak_history import ROLLOUT, ApiObservation, SoakHistory
from rollcall_protocol.pod_contract import READINESS_GATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hack.cluster.kubectl import Kubectl

ROUND_S, SIGHT_S, ANSWER_S = 1.0, 2.0, 5.0


class ClusterObserver:
    """Use as a context; fills `history` from two threads until it ends."""

    def __init__(self, kubectl: Kubectl, job: str, history: SoakHistory) -> None:
        self._kubectl, self._job, self._history = kubectl, job, history
        self._metrics, self._logs = MetricsReader(), LogReader(kubectl.namespace)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(look, every), name=name, daemon=True)
            for look, every, name in (
                (self._round, ROUND_S, "rounds"),
                (self._sight, SIGHT_S, "sights"),
            )
        ]
        self.trouble: list[str] = []
        self.uids: set[str] = set()  # of every worker pod that was ever seen
        self.networks: set[str] = set()  # and their network namespaces

    def __enter__(self) -> ClusterObserver:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=30)
        self._metrics.close()
        self._history.lines += self._logs.read()

    def _repeat(self, look: Callable[[], None], every: float) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                look()
            except (OSError, KubectlError, RuntimeError, ValueError, KeyError) as error:
                self.trouble.append(f"{type(error).__name__}: {error}")
            self._over.wait(max(0.05, every - (time.monotonic() - began)))

    def _round(self) -> None:
        workers = host_inspection.workers(self._kubectl.namespace)
        for worker in workers:
            if worker.uid not in self.uids:
                self.networks.add(host_inspection.network_namespace(worker.pid))
                self.uids.add(worker.uid)
        readings = self._metrics.read(workers)
        if readings:
            self._history.readings.append(readings)
        self._history.lines += self._logs.read()

    def _sight(self) -> None:
        self._history.sights.append(look(self._kubectl, self._job))


def look(kubectl: Kubectl, job: str) -> ApiObservation:
    """Ask the API once. KubectlError when it does not answer in time, KeyError without the job."""
    began = time.time()
    text = kubectl.run(
        "get",
        "rljobs,pods",
        "--output",
        "json",
        f"--request-timeout={ANSWER_S:.0f}s",
        seconds=ANSWER_S + 2,
    )
    items = json.loads(text)["items"]
    jobs = {i["metadata"]["name"]: i.get("status", {}) for i in items if i["kind"] == "RLJob"}
    status: dict[str, Any] = jobs[job]
    epochs: dict[int, str] = {}
    # Of all groups: an epoch is the job's, and each group that it changed records the cause.
    for group in status.get("syncGroups", []):
        epochs |= {entry["epoch"]: entry.get("cause", "") for entry in group.get("history", [])}
    ready, gates = {}, {}
    for pod in items:
        if pod["metadata"].get("labels", {}).get("rollcall.dev/role") == ROLLOUT:
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
            ready[pod["metadata"]["uid"]] = conditions.get("Ready") == "True"
            gates[pod["metadata"]["uid"]] = conditions.get(READINESS_GATE) == "True"
    return ApiObservation(began, ready, gates, epochs)
