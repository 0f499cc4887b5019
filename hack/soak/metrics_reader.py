"""Workers' metrics, fetched from inside the cluster's network: no API server is asked."""

from __future__ import annotations

import http.client
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hack.soak import host_inspection
from hack.soak.soak_history import TRAINER, MetricsReading, WorkerInstance
from rollcall_protocol.pod_contract import METRICS_PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_S = 1.0
_LINE = re.compile(r"^rollcall_(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_DISTINGUISHING_LABELS = (
    "outcome",
    "le",
    "cause",
    "what",
)  # the labels by which one process's lines differ


class MetricsReader:
    """Asks many workers at once, from the network of the control plane's node."""

    def __init__(self) -> None:
        gateway = host_inspection.node_pid(host_inspection.CONTROL_PLANE)
        # Namespaces belong to threads: only these are moved.
        self._pool = ThreadPoolExecutor(
            8, initializer=host_inspection.enter_network_of, initargs=(gateway,)
        )

    def read(self, workers: Sequence[WorkerInstance]) -> list[MetricsReading]:
        """Those that answer; the trainer before the others, so that it is never ahead of them."""
        first = [worker for worker in workers if worker.role == TRAINER]
        rest = [worker for worker in workers if worker.role != TRAINER]
        found = [*self._pool.map(_ask, first), *self._pool.map(_ask, rest)]
        return [reading for reading in found if reading is not None]

    def close(self) -> None:
        """End the threads, after the requests that they have begun."""
        self._pool.shutdown()


def _ask(worker: WorkerInstance) -> MetricsReading | None:
    connection = http.client.HTTPConnection(worker.address, METRICS_PORT, timeout=ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return MetricsReading(worker, time.time(), parse(text)) if answer.status == 200 else None


def parse(text: str) -> dict[str, float]:
    """Name, or name{value} with the value of the label by which lines differ, to number."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match:
            labels = dict(_LABEL.findall(match[2]))
            label_value = next(
                (labels[label] for label in _DISTINGUISHING_LABELS if label in labels), None
            )
            found[match[1] if label_value is None else f"{match[1]}{{{label_value}}}"] = float(
                match[3]
            )
    return found
