"""What the operator has written, as the API server has answered: a job is planned with all of it.

Read-your-writes, by the resourceVersions of
https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import Resource
from rollcall_operator.plan.model import JobKey

LONGEST_WAIT = 1.0
"""Seconds; a store that still has what was deleted is not waited for: the job is read live."""


@dataclass(slots=True)
class _Unseen:
    """Of one job: what was deleted (kind, name, uid), and since when the last. `live`: what a
    request did is not known. `awaited`: the job is planned once the store lacks what was deleted.
    """

    since: float = 0.0
    deleted: set[tuple[str, str, str]] = field(default_factory=set)
    live: bool = False
    awaited: bool = False


@dataclass(slots=True)
class _Underway:
    """While one job is written: kind and resourceVersion of what watches have reported of it, and
    of what the API server has answered to any request.
    """

    reported: set[tuple[str, str]] = field(default_factory=set)
    answered: set[tuple[str, str]] = field(default_factory=set)


class OwnWrites:
    """`keep_answer(resource, object)` puts an object into the store unless that has it, or a newer
    one; `lives(job, kind, name, uid)` is whether the store has one that is not being deleted;
    `changed_by_others(job)` is called for what turns out to be somebody else's write.

    Kinds go by their plurals.
    """

    def __init__(
        self,
        *,
        keep_answer: Callable[[Resource, Object], None],
        lives: Callable[[JobKey, str, str, str], bool],
        changed_by_others: Callable[[JobKey], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_answer, self._lives, self._clock = keep_answer, lives, clock
        self._changed_by_others = changed_by_others
        self._unseen: dict[JobKey, _Unseen] = {}
        self._underway: dict[JobKey, _Underway] = {}

    @contextmanager
    def writing(self, key: JobKey) -> Iterator[None]:
        """While the job is written. A watch may report a write before it is answered."""
        underway = self._underway[key] = _Underway()
        try:
            yield
        finally:
            del self._underway[key]
            if underway.reported - underway.answered:
                self._changed_by_others(key)

    def may_be_own(self, key: JobKey, plural: str, version: str) -> bool:
        """Whether a change that a watch reports now may be a write that is not answered yet. Once
        the job is written that is known, and `changed_by_others` is called if it was none.

        What was answered before holds a change of somebody else, or it would not be reported.
        """
        underway = self._underway.get(key)
        if underway is None or (plural, version) in underway.answered:
            return False
        underway.reported.add((plural, version))
        return True

    def wrote(self, resource: Resource, found: Object) -> None:
        """The API server holds this object, as its answer to a write or read says."""
        for underway in self._underway.values():
            underway.answered.add((resource.plural, found["metadata"]["resourceVersion"]))
        self._keep_answer(resource, found)

    def is_waited_for(self, key: JobKey) -> bool:
        """Whether the job is to be planned as soon as the store has seen more."""
        unseen = self._unseen.get(key)
        return unseen is not None and unseen.awaited

    def deleted(self, key: JobKey, plural: str, name: str, uid: str) -> None:
        """The API server has begun to delete this object."""
        unseen = self._of(key)
        unseen.deleted.add((plural, name, uid))
        unseen.since = self._clock()

    def doubt(self, key: JobKey) -> None:
        """What a request has done is not known, or was not what was expected: read live next."""
        self._of(key).live = True

    def read(self, key: JobKey) -> None:
        """The job was read live: what was unknown is known."""
        if key in self._unseen:
            self._unseen[key].live = False

    def wait(self, key: JobKey) -> float | None:
        """Seconds that the store may be waited for: 0 to read live, None if it has seen all."""
        unseen = self._unseen.get(key)
        if unseen is None:
            return None
        if unseen.live:
            return 0.0
        unseen.deleted = {each for each in unseen.deleted if self._lives(key, *each)}
        if unseen.deleted:
            unseen.awaited = True
            return max(0.0, unseen.since + LONGEST_WAIT - self._clock())
        del self._unseen[key]
        return None

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._unseen.pop(key, None)

    def _of(self, key: JobKey) -> _Unseen:
        return self._unseen.setdefault(key, _Unseen())
