"""Which of the operator's writes a job's store has not seen yet: until then it is not planned from.

Read-your-writes, as by the resourceVersions of
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rollcall_operator.control.job_state import Key
from rollcall_operator.kube.client import Object

LONGEST_WAIT = 1.0
"""Seconds; a store that has not seen a write by then is not waited for: the job is read live."""


@dataclass(slots=True)
class _Unseen:
    """Of one job: the resourceVersions that were written or read, with their kinds; what was
    deleted (kind, name, uid); since when. `live`: what a request did is not known. `awaited`: the
    job is planned once the store has seen them.
    """

    since: float
    versions: set[tuple[str, int]] = field(default_factory=set)
    deleted: set[tuple[str, str, str]] = field(default_factory=set)
    live: bool = False
    awaited: bool = False


class OwnWrites:
    """`reached(kind, namespace)` is the resourceVersion up to which the store has seen all of a
    kind; `lives(job, kind, name, uid)` whether it has an object that is not being deleted.

    Kinds go by their plurals.
    """

    def __init__(
        self,
        *,
        reached: Callable[[str, str], int],
        lives: Callable[[Key, str, str, str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reached, self._lives, self._clock = reached, lives, clock
        self._unseen: dict[Key, _Unseen] = {}

    def wrote(self, key: Key, plural: str, found: Object) -> None:
        """The API server holds this object of the job, as its answer to a write or read says."""
        version = found["metadata"]["resourceVersion"]
        self._of(key).versions.add((plural, int(version)))

    def written(self, key: Key, plural: str, version: str) -> bool:
        """Whether this resourceVersion is one that was written, or read live, just now."""
        unseen = self._unseen.get(key)
        return unseen is not None and (plural, int(version)) in unseen.versions

    def is_waited_for(self, key: Key) -> bool:
        """Whether the job is to be planned as soon as the store has seen more."""
        unseen = self._unseen.get(key)
        return unseen is not None and unseen.awaited

    def deleted(self, key: Key, plural: str, name: str, uid: str) -> None:
        """The API server has begun to delete this object."""
        self._of(key).deleted.add((plural, name, uid))

    def doubt(self, key: Key) -> None:
        """What a request has done is not known, or was not what was expected: read live next."""
        self._of(key).live = True

    def read(self, key: Key) -> None:
        """The job was read live: what was unknown is known."""
        if key in self._unseen:
            self._unseen[key].live = False

    def wait(self, key: Key) -> float | None:
        """Seconds that the store may be waited for: 0 to read live, None if it has seen all."""
        unseen = self._unseen.get(key)
        if unseen is None:
            return None
        if unseen.live:
            return 0.0
        reached = {plural: self._reached(plural, key[0]) for plural, _ in unseen.versions}
        unseen.versions = {each for each in unseen.versions if reached[each[0]] < each[1]}
        unseen.deleted = {each for each in unseen.deleted if self._lives(key, *each)}
        if unseen.versions or unseen.deleted:
            unseen.awaited = True
            return max(0.0, unseen.since + LONGEST_WAIT - self._clock())
        del self._unseen[key]
        return None

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._unseen.pop(key, None)

    def _of(self, key: Key) -> _Unseen:
        unseen = self._unseen.setdefault(key, _Unseen(since=0.0))
        unseen.since = self._clock()
        return unseen
