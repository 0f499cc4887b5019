"""The newest changes of the store, for those who watch.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from rollcall_local.api_server.errors import ForgottenVersionError

Object = dict[str, Any]
Wanted = Callable[[str, Object], bool]
"""Takes a kind's plural name and an object."""

REMEMBERED = 4096
MOST_AT_ONCE = 256
"""Changes that a watch holds while its client is slow."""


class Change(NamedTuple):
    """One write: the object before and after it; None: there was none, or it was deleted."""

    version: int
    plural: str
    before: Object | None
    now: Object | None


class Event(NamedTuple):
    """What a watch tells: ADDED, MODIFIED or DELETED."""

    type: str
    object: Object


class ChangeLog:
    """Numbers all changes one after another, and remembers the newest."""

    def __init__(self, version: int) -> None:
        """`version` is that of the newest change so far, which a watch can begin at."""
        self.version = version
        self._changes: deque[Change] = deque(maxlen=REMEMBERED)
        self._news = asyncio.Event()

    def add(self, plural: str, before: Object | None, now: Object | None) -> None:
        """The next change."""
        self.version += 1
        self._changes.append(Change(self.version, plural, before, now))
        self._news.set()
        self._news = asyncio.Event()

    def after(self, version: int) -> list[Change]:
        """The next changes, at most MOST_AT_ONCE; ForgottenVersionError if some are forgotten."""
        newer = self.version - version
        if not 0 <= newer <= len(self._changes):
            raise ForgottenVersionError(f"resourceVersion {version} is not known here; list again")
        first = len(self._changes) - newer
        return list(itertools.islice(self._changes, first, first + MOST_AT_ONCE))

    async def wait(self, version: int, seconds: float) -> None:
        """Until there is a change after `version`, or `seconds` have passed."""
        if self.version == version:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()


class ServedWatch:
    """The events of those objects that are `wanted`, after the resourceVersion `since`.

    An object that is no longer wanted is DELETED, one that was not wanted before ADDED.
    """

    def __init__(self, log: ChangeLog, wanted: Wanted, since: int) -> None:
        self._log, self._wanted = log, wanted
        self.since = since
        """All events up to this resourceVersion were taken."""

    def take(self) -> list[Event]:
        """What comes next, if anything; ForgottenVersionError if it is forgotten already."""
        changes = self._log.after(self.since)
        if changes:
            self.since = changes[-1].version
        return [event for each in changes if (event := self._event(each)) is not None]

    async def wait(self, seconds: float) -> None:
        """Until there may be more to take, or `seconds` have passed."""
        await self._log.wait(self.since, seconds)

    def _event(self, change: Change) -> Event | None:
        before, now = self._if_wanted(change, change.before), self._if_wanted(change, change.now)
        if now is not None:
            return Event("ADDED" if before is None else "MODIFIED", now)
        if before is not None:
            version = {"resourceVersion": str(change.version)}
            return Event("DELETED", {**before, "metadata": {**before["metadata"], **version}})
        return None

    def _if_wanted(self, change: Change, found: Object | None) -> Object | None:
        return found if found is not None and self._wanted(change.plural, found) else None
