"""Kubernetes events: posted in the background; a repeated one within minutes becomes a series."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ApiError, TerminatingError, UnreachableError
from rollcall_operator.kube.resources import EVENTS
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.printable_text import printable_lines

log = logging.getLogger(__name__)

_SERIES_SECONDS = 360.0
_KEPT_SERIES = 4096
_NOTE_LIMIT = 1024  # the API's own
_PENDING = 1000


@dataclass(frozen=True, slots=True)
class _PendingEvent:
    regarding: Mapping[str, str]
    type: str
    reason: str
    note: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.regarding.get("uid", ""), self.type, self.reason, self.note)


@dataclass(slots=True)
class _Series:
    name: str
    count: int
    last: float


class EventRecorder:
    """`record` does not wait, `run` posts. When the queue is full, events are dropped (counted)."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._pending: asyncio.Queue[_PendingEvent] = asyncio.Queue(_PENDING)
        self._series: OrderedDict[tuple[str, str, str, str], _Series] = OrderedDict()
        self._instance = (os.environ.get("HOSTNAME") or socket.gethostname())[:128]
        self.dropped = 0

    def record(
        self, regarding: Mapping[str, str], *, type_: str, reason: str, message: str
    ) -> None:
        """Record an event about the object `regarding` (a reference); type Normal or Warning."""
        note = printable_lines(message)[:_NOTE_LIMIT]
        try:
            self._pending.put_nowait(
                _PendingEvent(regarding=regarding, type=type_, reason=reason, note=note)
            )
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Post events until cancelled. One that cannot be posted is logged and dropped."""
        while True:
            event = await self._pending.get()
            try:
                await self._post(event)
            except TerminatingError:
                log.debug("Event %s: the namespace is being deleted", event.reason)
            except (ApiError, UnreachableError) as error:
                log.warning("Event %s was not posted: %s", event.reason, error)
            finally:
                self._pending.task_done()

    async def flush(self, *, seconds: float) -> None:
        """Wait until all recorded events are posted, or `seconds` have passed."""
        try:
            await asyncio.wait_for(self._pending.join(), seconds)
        except TimeoutError:
            log.warning("%d events were not posted before shutdown", self._pending.qsize())

    async def _post(self, event: _PendingEvent) -> None:
        now = self._clock()
        series = self._series.get(event.key)
        if series is not None and now - series.last < _SERIES_SECONDS:
            series.count += 1
            series.last = now
            try:
                await self._bump(event, series)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        name = f"{event.regarding['name'][:200]}.{secrets.token_hex(8)}"
        await self._client.create(EVENTS, self._body(event, name=name))
        self._series[event.key] = _Series(name=name, count=1, last=now)
        self._series.move_to_end(event.key)
        while len(self._series) > _KEPT_SERIES:
            self._series.popitem(last=False)

    async def _bump(self, event: _PendingEvent, series: _Series) -> None:
        last = {"count": series.count, "lastObservedTime": to_micro_time(time.time())}
        await self._client.merge(
            EVENTS,
            namespace=event.regarding["namespace"],
            name=series.name,
            patch={"series": last},
        )

    def _body(self, event: _PendingEvent, *, name: str) -> dict[str, Any]:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": event.regarding["namespace"]},
            "eventTime": to_micro_time(time.time()),
            "reportingController": "rollcall.dev/operator",
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "reason": event.reason,
            "type": event.type,
            "note": event.note,
            "regarding": dict(event.regarding),
        }
