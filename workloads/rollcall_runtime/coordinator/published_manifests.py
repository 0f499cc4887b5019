"""What the trainer published last, in a folder that outlives its process.

A trainer that recovers weights from rollouts compares what they send with these manifests.
"""

import logging
from pathlib import Path

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.json_codec import CodecError, decode, parse
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.atomic_json import write_json

KEPT = 8  # manifests: rollouts hold the newest version or one of the few before it

log = logging.getLogger(__name__)


class PublishedManifests:
    """Manifests of the newest KEPT versions, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, version: Version, manifest: WeightManifest) -> None:
        """Write the manifest of `version`, whole or not at all, and remove the oldest.

        An OSError is logged: the version is published all the same, and cannot be recovered.
        """
        try:
            write_json(self._path(version), manifest)
            files = sorted(self._folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
            for old in files[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("version %s cannot be recovered from rollouts: %s", version, error)

    def load(self, version: Version) -> WeightManifest | None:
        """The manifest of `version`; None if there is none that can be read, which is logged."""
        path = self._path(version)
        try:
            return decode(WeightManifest, parse(path.read_text(encoding="utf-8")))
        except (OSError, CodecError, ValueError) as error:
            log.warning("what version %s consisted of is not known: %s", version, error)
            return None

    def _path(self, version: Version) -> Path:
        return self._folder / f"{version}.json"
