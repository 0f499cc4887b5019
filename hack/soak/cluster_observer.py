"""Looks at the job all the time, from the machine and through the API, and keeps what it saw."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hack.cluster.errors import KubectlError
from hack.soak import host_inspection
from hack.soak.metrics_reader import MetricsReader
from hack.soak.soak_history import ROLLOUT, ApiObservation, LogLine, SoakHistory
from rollcall_protocol.pod_contract import READINESS_GATE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hack.cluster.kubectl import Kubectl

ROUND_S, SIGHT_S, ANSWER_S = 1.0, 2.0, 5.0
_FOLDER = "root/var/log/pods"


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


@dataclass(slots=True)
class LogReader:
    """Reads what is new in the logs of a namespace's pods, over restarts of all kinds."""

    namespace: str
    _offsets: dict[str, int] = field(default_factory=dict)  # by node and path in it

    def read(self) -> list[LogLine]:
        """The lines since the last call."""
        lines: list[LogLine] = []
        for node in host_inspection.WORKER_NODES:
            pid = host_inspection.node_pid(node)
            if pid:
                folder = host_inspection.PROC / str(pid) / _FOLDER
                for path in folder.glob(f"{self.namespace}_*_*/*/*.log"):
                    lines += self._read(f"{node}/{path.relative_to(folder)}", path)
        return sorted(lines, key=lambda line: line.time)

    def _read(self, name: str, path: Path) -> list[LogLine]:
        _, pod, uid = path.parts[-3].split("_")
        try:
            with path.open("rb") as log:
                log.seek(self._offsets.get(name, 0))
                data = log.read()
        except OSError:
            return []  # removed with its pod
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[name] = self._offsets.get(name, 0) + len(whole)
        found = (
            parse(text, pod=pod, uid=uid) for text in whole.decode(errors="replace").split("\n")
        )
        return [line for line in found if line is not None]


def parse(text: str, *, pod: str, uid: str) -> LogLine | None:
    """A line as containerd writes it (`time stream tag text`); None for what is no log line."""
    words = text.split(" ", 3)
    if len(words) < 4:
        return None
    try:
        said = json.loads(words[3])
        time = datetime.fromisoformat(said["time"]).timestamp()
        message, level = str(said["message"]), str(said["level"])
    except (ValueError, KeyError, TypeError):
        # What does not come from our logger, such as a traceback: containerd's time to the second.
        try:
            time = datetime.fromisoformat(words[0][:19] + "+00:00").timestamp()
        except ValueError:
            return None
        return LogLine(time, pod, uid, words[3], "raw")
    return LogLine(time, pod, uid, message, level)
