"""Follows all objects of one kind: a LIST, then WATCHes from there on, without end.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollcall_operator.kube.client import PAGE, KubeClient, Object
from rollcall_operator.kube.errors import ApiError, ExpiredError, UnreachableError
from rollcall_operator.kube.resources import Resource

log = logging.getLogger(__name__)

T = TypeVar("T")

Changed = Callable[[T | None, T | None], None]
"""Takes what was kept of an object before and what is now; None: it did not exist, or does not."""

_WATCH = 290  # seconds
_SHORT_WATCH = 3
"""The API server says how far it is each minute, and two seconds before it ends a WATCH
(nextBookmarkTime in k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go).
"""
_CATCH_UP_SECONDS = 10.0
_SHORT_SECONDS = 1.0  # a WATCH without an event that ends sooner counts as failed


@dataclass(slots=True)
class _Answers(Generic[T]):
    """Of one object, until the watch has reported the newest: what was kept before the first answer
    to a request, and the resourceVersions of all, in their order.
    """

    before: T | None
    versions: list[int] = field(default_factory=list)

    @property
    def newest(self) -> int:
        return self.versions[-1]


class Watch(Generic[T]):
    """Keeps `reduce(object)` of each object, by namespace and name.

    `changed` is called with each difference, also with those that were missed while no WATCH was
    open. Failures are waited out for `delay(failures in a row)` seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        reduce: Callable[[Object], T],
        changed: Changed[T],
        delay: Callable[[int], float],
    ) -> None:
        self._client, self._resource, self._namespace = client, resource, namespace
        self._query = {"labelSelector": labels} if labels else {}
        self._reduce, self._changed, self._delay = reduce, changed, delay
        self._kept: dict[tuple[str, str], T] = {}
        self._answers: dict[tuple[str, str], _Answers[T]] = {}
        self._must_list = True  # before the next WATCH
        self._wanted = 0  # the resourceVersion that `catch_up` waits for
        self._caught_up = asyncio.Event()
        self._open: asyncio.Timeout | None = None  # of the WATCH that is open
        self._failures = 0
        self.reached = 0
        """The newest resourceVersion whose changes were all reported: the next WATCH begins there.
        0 before the first LIST.

        They are numbers, and compare as such (Kubernetes enhancement 5504)."""
        self.failing_since: float | None = None
        """In seconds of the monotonic clock; None while a WATCH is open, or opened again at once"""
        self.listed = asyncio.Event()
        """Set once the first LIST is there."""

    def keep_answer(self, found: Object) -> tuple[T | None, T] | None:
        """Keep an object as the API server has answered a request: its event may come later.

        Returns what was kept before, and what is now; None if the watch has come as far already.
        The event of an answer is no difference. An older event that was no answer is somebody
        else's write, which the answer has in it: then that difference is reported.
        """
        key, version = _key(found), _version(found)
        if not self.is_behind(*key, version):
            return None
        before, now = self._kept.get(key), self._reduce(found)
        self._answers.setdefault(key, _Answers(before)).versions.append(version)
        self._kept[key] = now
        return before, now

    def is_behind(self, namespace: str, name: str, version: int) -> bool:
        """Whether it has neither reported nor kept an object in this resourceVersion, or later."""
        answers = self._answers.get((namespace, name))
        return version > max(self.reached, answers.newest if answers is not None else 0)

    async def catch_up(self) -> None:
        """Wait until all that had happened before this call is reported.

        What fits into a page is listed again. Of more than that the WATCH reports the rest; but
        where nothing changes, only the API server knows how far it is. A short WATCH has it say so,
        and if it does not in time, all is listed again. Errors are waited out, as in `run`.
        """
        await self.listed.wait()
        if len(self._kept) > PAGE and await self._reaches(await self._newest()):
            return
        self.listed.clear()
        self._must_list = True
        self._end_watch()
        await self.listed.wait()

    async def _reaches(self, version: int) -> bool:
        self._wanted = version
        if self.reached < version:
            self._caught_up.clear()
            self._end_watch()
            try:
                await asyncio.wait_for(self._caught_up.wait(), _CATCH_UP_SECONDS)
            except TimeoutError:
                plural = self._resource.plural
                log.info("The WATCH of %s is behind after %.0f s", plural, _CATCH_UP_SECONDS)
        return self.reached >= version

    async def _newest(self) -> int:
        """The resourceVersion of a list that is made now."""
        failures = 0
        while True:
            try:
                return _version(await self._client.probe(self._resource, namespace=self._namespace))
            except (ApiError, UnreachableError) as error:
                log.info("Listing %s: %s", self._resource.plural, error)
            failures += 1
            await asyncio.sleep(self._delay(failures))

    def _end_watch(self) -> None:
        """The next one begins where it ends."""
        if self._open is not None:
            self._open.reschedule(asyncio.get_running_loop().time())

    def _reach(self, version: int) -> None:
        self.reached = version
        if version >= self._wanted:
            self._caught_up.set()

    async def run(self) -> None:
        """List, then follow changes, until cancelled. An error is logged and tried again."""
        while True:
            try:
                while self._must_list:
                    await self._list()
                await self._follow()
                continue
            except ExpiredError:
                self._must_list = True
                problem = "the API server has forgotten where it stopped; it is listed anew"
            except (ApiError, UnreachableError) as error:
                problem = str(error)
            self._failures += 1
            if self.failing_since is None:
                self.failing_since = time.monotonic()
            pause = self._delay(self._failures)
            log.info("Watching %s: %s; again in %.1f s", self._resource.plural, problem, pause)
            await asyncio.sleep(pause)

    async def _list(self) -> None:
        self._must_list = False  # but for a `catch_up` from now on
        try:
            await self._take_all()
        except (ApiError, UnreachableError):
            self._must_list = True
            raise
        if not self._must_list:
            self.listed.set()

    async def _take_all(self) -> None:
        for key, answers in self._answers.items():  # a LIST does not say what others have changed
            self._changed(answers.before, self._kept[key])
        there = set()
        version = 0
        pages = self._client.pages(
            self._resource, namespace=self._namespace, query=dict(self._query)
        )
        async for page in pages:
            version = _version(page)
            for found in page["items"]:
                there.add(_key(found))
                if not self._was_answered(found):
                    self._take(found)
        self._answers = {key: each for key, each in self._answers.items() if each.newest > version}
        for key in self._kept.keys() - there - self._answers.keys():
            self._drop(key)
        self._reach(version)

    async def _follow(self) -> None:
        query = {
            **self._query,
            "resourceVersion": str(self.reached),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_SHORT_WATCH if self.reached < self._wanted else _WATCH),
        }
        events = self._client.watch(
            self._resource, namespace=self._namespace, query=query, opened=self._opened
        )
        began, received = time.monotonic(), 0
        try:
            async with asyncio.timeout(None) as self._open, aclosing(events):
                async for event in events:
                    received += 1
                    self._failures = 0
                    self._event(event.get("type"), event["object"])
        except TimeoutError:  # by `_end_watch`: the client raises none
            return
        finally:
            self._open = None
        if not received and time.monotonic() - began < _SHORT_SECONDS:
            raise UnreachableError("the WATCH ended at once")

    def _opened(self) -> None:
        self.failing_since = None

    def _event(self, kind: Any, found: Object) -> None:
        version = _version(found)
        if kind == "DELETED":
            if not self._was_answered(found):
                self._drop(_key(found))
        elif kind in {"ADDED", "MODIFIED"}:
            if not self._was_answered(found):
                self._take(found)
        elif kind != "BOOKMARK":
            log.warning("Watching %s: event %r is not known", self._resource.plural, kind)
        self._reach(version)

    def _was_answered(self, found: Object) -> bool:
        """Whether what is kept is as new as this, or newer; reports what others have changed."""
        key = _key(found)
        answers = self._answers.get(key)
        if answers is None:
            return False
        version = _version(found)
        if version >= answers.newest:
            del self._answers[key]
        if version > answers.newest:
            return False
        if version not in answers.versions:
            self._changed(answers.before, self._kept[key])
        return True

    def _take(self, found: Object) -> None:
        key, now = _key(found), self._reduce(found)
        before = self._kept.get(key)
        self._kept[key] = now
        self._changed(before, now)

    def _drop(self, key: tuple[str, str]) -> None:
        before = self._kept.pop(key, None)
        if before is not None:
            self._changed(before, None)


def _key(found: Object) -> tuple[str, str]:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(found: Object) -> int:
    version = str(found["metadata"].get("resourceVersion") or "")
    if not version.isdecimal():
        raise UnreachableError(f"resourceVersion {version!r} is no number")
    return int(version)
