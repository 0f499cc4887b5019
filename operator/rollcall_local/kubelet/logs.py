"""What containers have written, for the API server."""

import time
from pathlib import Path
from typing import Any

from rollcall_local.api_server.pod_routes import ReadLog
from rollcall_local.kubelet.container_files import ContainerFiles
from rollcall_local.kubelet.pod_runner import pod_folder

Object = dict[str, Any]


def log_reader(folder: Path) -> ReadLog:
    """Reads the newest run of a container that has written something, below the run's folder."""

    def read(pod: Object, container: str, lines: int | None, seconds: int | None) -> bytes:
        since = 0.0 if seconds is None else time.time() - seconds
        return ContainerFiles(pod_folder(folder, pod), container).output(lines, since=since)

    return read
