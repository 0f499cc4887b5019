"""Keeps objects in a folder, one file each, so that the next start finds them."""

import json
from pathlib import Path
from typing import Any

import orjson

from rollcall_local.api_server.kinds import KINDS
from rollcall_local.api_server.store import Entry, Key
from rollcall_local.api_server.whole_file import write_whole

_CLUSTER = "-"  # in the place of a namespace


class ObjectFolder:
    """Files `PLURAL/NAMESPACE/NAME.json` of the kinds that outlive a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problem = ""
        """Why the last object could not be written."""

    def load(self) -> dict[Key, Entry]:
        """All objects; ValueError that names a file which cannot be read."""
        found = {}
        for file in sorted(self._path.glob("*/*/*.json")):
            plural, namespace = file.parts[-3:-1]
            try:
                content: dict[str, Any] = json.loads(file.read_bytes())
                body = content["object"]
                key = Key(plural, "" if namespace == _CLUSTER else namespace, file.stem)
                int(body["metadata"]["resourceVersion"])
                found[key] = Entry(body, content["applied"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}: not an object of this program: {error}") from error
        return {key: entry for key, entry in found.items() if key.plural in KINDS}

    def changed(self, key: Key, entry: Entry | None) -> None:
        """Write the object of a key, or remove it. OSError if the disk refuses."""
        if not KINDS[key.plural].kept:
            return
        try:
            self._write(key, entry)
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror or error}"
            raise
        self.problem = ""

    def _write(self, key: Key, entry: Entry | None) -> None:
        file = self._path / key.plural / (key.namespace or _CLUSTER) / f"{key.name}.json"
        if entry is None:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, orjson.dumps({"object": entry.object, "applied": entry.applied}))
