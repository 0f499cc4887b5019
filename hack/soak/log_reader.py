"""Workers' logs as the nodes keep them on disk, read as they grow: no API server is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from hack.soak import host_inspection
from hack.soak.soak_history import LogLine

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = "root/var/log/pods"


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
