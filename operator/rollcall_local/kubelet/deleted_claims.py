"""What PersistentVolumeClaims held: it goes once the claim is deleted and no pod has it any more.

https://kubernetes.io/docs/concepts/storage/persistent-volumes/#reclaiming
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rollcall_local.api_server.store import Key

log = logging.getLogger(__name__)


class DeletedClaims:
    """`folder` has a folder for each claim, below that of its namespace."""

    def __init__(self, folder: Path, *, is_needed: Callable[[Key], bool]) -> None:
        """`is_needed` says whether a claim is there, or a pod that runs has its folder."""
        self._folder, self._is_needed = folder, is_needed
        self._deleted: set[Key] = set()

    def add(self, key: Key) -> None:
        """A claim is gone."""
        self._deleted.add(key)

    async def remove(self) -> None:
        """Delete what nothing needs; to be called again when a pod is gone."""
        for key in [key for key in self._deleted if not self._is_needed(key)]:
            self._deleted.discard(key)
            place = self._folder / key.namespace / key.name
            if not place.exists():
                continue
            try:  # out of the way at once: a claim of this name may be made again
                aside = Path(tempfile.mkdtemp(prefix=".deleted-", dir=self._folder))
                place.rename(aside / key.name)
                await asyncio.to_thread(shutil.rmtree, aside)
            except OSError as error:
                log.warning("What claim %s held is not deleted: %s", key.name, error)
