"""The step with which a trainer has finished, kept where its next container finds it."""

import json
from pathlib import Path

from rollcall_runtime.coordinator.atomic_json import write_json


class FinishedStep:
    """In the pod's `folder`, an emptyDir: a container that is started again must not train."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "finished.json"

    def write(self, step: int) -> None:
        """Training is over. OSError if that cannot be written."""
        write_json(self._path, step)

    def read(self) -> int | None:
        """None before training is over. ValueError for a file that another program wrote."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if type(found) is not int:
            raise ValueError(f"{self._path} holds no step; delete the pod")
        return found
