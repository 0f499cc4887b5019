"""The operator's connection to one job's coordinator: a stream of snapshots in, rosters out.

A link exists as long as its job has a coordinator pod. It decides nothing: it keeps the latest
snapshot, asks for a reconcile when that changes, and pushes the roster that the last reconcile
decided until the coordinator holds it.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.control.report_stream import ReportReader
from rollcall_operator.control.silence_limit import SilenceError, silence_limit
from rollcall_operator.kube.errors import ApiError, UnreachableError, connection_error_text
from rollcall_operator.kube.pod_dialer import Endpoint, PodAddress, PodDialer
from rollcall_operator.plan.model import LinkFacts, LinkFailure
from rollcall_operator.plan.status.coordinator_contact import SILENCE_SECONDS
from rollcall_protocol.pod_contract import MEMBERSHIP_PORT, OPERATOR_STREAM_ROUTE, ROSTER_ROUTE
from rollcall_protocol.wire.bounded_lines import TooMuchError
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.json_codec import CodecError, encode
from rollcall_protocol.wire.plain_answers import UnusableAnswerError
from rollcall_protocol.wire.roster import Roster

log = logging.getLogger(__name__)

_DETAIL_LIMIT = 300  # characters of an answer that a condition quotes


class LinkMetrics(Protocol):
    """Counts what links do."""

    def link_connected(self, *, up: bool) -> None:
        """A stream was opened or ended."""

    def roster_pushed(self, result: str) -> None:
        """A push of a roster was accepted, refused or failed."""

    def snapshot_refused(self, reason: str) -> None:
        """A snapshot was dropped: malformed, too much, or of another pod than the one addressed."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Times are seconds.

    After a failure it pauses as `backoff` says, but a third of the time without contact where that
    is longer, up to `longest_pause`: so coordinators that are away for long cost nearly nothing.
    One whose pod changes, as it becomes ready, is tried again at once. One that was cut off, since
    it sent too much, is tried again as `cut_off` says.
    """

    port: int = MEMBERSHIP_PORT
    connect_timeout: float = 3.0
    silence_timeout: float = 11.0  # two heartbeats of the coordinator, and a second
    push_timeout: float = 5.0
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(first=0.2, longest=3.0))
    longest_pause: float = 60.0
    cut_off: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(first=60.0, longest=600.0))
    confirm_delay: float = 1.0


class LinkCredentials(Protocol):
    """What a link shows to the coordinator."""

    async def token(self) -> str:
        """A token that is valid now. Raises ApiError or UnreachableError."""

    def refused(self) -> None:
        """The coordinator refused the token."""


class LinkError(Exception):
    """The coordinator's answer ends this connection; `final`: only a reconcile can help."""

    def __init__(
        self,
        message: str,
        *,
        final: bool = False,
        failure: LinkFailure = LinkFailure.UNREACHABLE,
    ) -> None:
        super().__init__(message)
        self.final = final
        self.failure = failure


_FAILURES = (
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    LinkError,
    SilenceError,
    ApiError,
    UnreachableError,
)


class CoordinatorLink:
    """One stream and one task that pushes rosters, for one pod."""

    def __init__(
        self,
        *,
        pod: PodAddress,
        credentials: LinkCredentials,
        dialer: PodDialer,
        notify: Callable[[float], None],
        progressed: Callable[[], None],
        metrics: LinkMetrics,
        silent: LinkFacts | None = None,
        settings: LinkSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`silent`: how an earlier operator got nothing from the pod.

        `notify(delay)` asks for a reconcile of the job in `delay` seconds, `progressed` for one
        that may wait: only steps and versions have changed. `clock` gives Unix seconds.
        """
        self.pod = pod
        self._credentials = credentials
        self._dialer = dialer
        self._notify, self._progressed = notify, progressed
        self._metrics = metrics
        self._settings = settings or LinkSettings()
        self._reader = ReportReader()
        self._snapshot: JobSnapshot | None = None
        self._wanted: Roster | None = None
        self._connected = False
        self._clock = clock
        self._last_byte = clock() if silent is None else silent.since
        self._failure: LinkFailure | None = None
        self._planned_failure = None if silent is None else silent.failure
        self._detail = ""
        self._changed = asyncio.Event()
        self._retry = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def snapshot(self) -> JobSnapshot | None:
        """The latest state that this pod reported; kept while the stream is away."""
        return self._snapshot

    @property
    def connected(self) -> bool:
        """Whether the stream is open now."""
        return self._connected

    @property
    def facts(self) -> LinkFacts:
        """How the connection is, for the planner."""
        return LinkFacts(
            connected=self._connected and self._failure is None,
            since=self._last_byte,
            failure=self._failure,
            detail=self._detail,
        )

    def serves(self, pod: PodAddress) -> bool:
        """Whether this link is the one for `pod`."""
        return pod == self.pod

    def start(self) -> None:
        """Open the stream; call inside a running loop."""
        name = f"{self.pod.namespace}/{self.pod.name}"
        self._tasks = [
            asyncio.create_task(self._stream(), name=f"stream {name}"),
            asyncio.create_task(self._push(), name=f"push {name}"),
        ]

    def set_roster(self, roster: Roster | None) -> None:
        """Have the coordinator hold `roster`; None leaves it unchanged."""
        if roster is not None and roster.coordinator_uid != self.pod.uid:
            return  # of a coordinator that was replaced; the next reconcile opens a new link
        if roster != self._wanted:
            self._wanted = roster
            self._changed.set()

    def retry_now(self) -> None:
        """The pod may have changed: try again now if the stream is not open."""
        self._retry.set()

    async def close(self) -> None:
        """End both tasks and wait for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._mark_closed()

    # --- the stream ----------------------------------------------------------------------------

    async def _stream(self) -> None:
        failures = cuts = 0
        while True:
            before = self._snapshot
            try:
                await self._read()
                problem = "the coordinator closed the stream"
                self._fail(LinkFailure.UNREACHABLE, problem)
            except _FAILURES as error:
                detail = connection_error_text(error)
                problem = f"{type(error).__name__}: {detail}"
                self._fail(_failure_of(error), detail)
            failures = 0 if self._snapshot is not before else failures + 1
            cuts = cuts + 1 if self._failure is LinkFailure.EXCESSIVE else 0
            if self._mark_closed():
                log.info("Disconnected from coordinator %s: %s", self.pod.name, problem)
            else:
                log.debug("Not connected to coordinator %s yet: %s", self.pod.name, problem)
            if cuts:
                await asyncio.sleep(self._settings.cut_off.delay(cuts))
            self._retry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause(failures)):
                    await self._retry.wait()

    def _pause(self, failures: int) -> float:
        third = min((self._clock() - self._last_byte) / 3, self._settings.longest_pause)
        spread = BackoffPolicy(first=third, longest=third)
        return max(self._settings.backoff.delay(failures), spread.delay(1))

    def _fail(self, failure: LinkFailure, detail: str) -> None:
        """Keep why nothing arrives; the planner decides after how long that counts."""
        planned, self._planned_failure = self._planned_failure, failure
        self._failure, self._detail = failure, detail[:_DETAIL_LIMIT]
        if self._connected:
            self._notify(0.0)
        elif failure is not planned:
            self._notify(SILENCE_SECONDS if planned is None else 0.0)

    def _bytes_arrived(self) -> None:
        """Bytes arrived; after a failure they count once they are a report that can be read."""
        if self._failure is None:
            self._last_byte = self._clock()

    def _mark_closed(self) -> bool:
        """Count the stream's end; False when it was not open."""
        was, self._connected = self._connected, False
        if was:
            self._metrics.link_connected(up=False)
        return was

    async def _read(self) -> None:
        settings = self._settings
        endpoint = await self._endpoint()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout)
        async with (
            silence_limit(settings.silence_timeout) as not_silent,
            self._dialer.session.get(
                endpoint.url + OPERATOR_STREAM_ROUTE,
                headers=endpoint.headers,
                timeout=timeout,
                **endpoint.tls,
            ) as response,
        ):
            self._note_refusal(response)
            if response.status != 200:
                text = f"{response.status} {await _error_text(response)}"
                raise LinkError(text, failure=_failure_of_status(response.status))
            self._connected = True
            self._metrics.link_connected(up=True)
            log.info("Connected to coordinator %s", self.pod.name)

            def arrived() -> None:
                not_silent()
                self._bytes_arrived()

            try:
                async with contextlib.aclosing(
                    self._reader.read(response.content, arrived)
                ) as reports:
                    async for snapshot in reports:
                        self._accept(snapshot)
            except CodecError as error:
                self._metrics.snapshot_refused("malformed")
                problem = f"its report cannot be read: {error}"
                raise LinkError(problem, failure=LinkFailure.INCOMPATIBLE) from error
            except TooMuchError as error:
                self._metrics.snapshot_refused("too_much")
                problem = f"it sent {error}"
                raise LinkError(problem, failure=LinkFailure.EXCESSIVE) from error

    def _accept(self, snapshot: JobSnapshot) -> None:
        if snapshot.pod_uid != self.pod.uid:
            self._metrics.snapshot_refused("other_pod")
            raise LinkError(f"snapshot of pod {snapshot.pod_uid}, not {self.pod.uid}")
        before, self._snapshot = self._snapshot, snapshot
        again = self._failure is not None
        self._failure, self._planned_failure, self._detail = None, None, ""
        self._bytes_arrived()
        if again or before is None or _urgent(before) != _urgent(snapshot):
            self._notify(0.0)
            self._changed.set()
        elif before.progress != snapshot.progress:
            self._progressed()

    async def _endpoint(self) -> Endpoint:
        """With a token that is valid now; a link outlives any token."""
        token = await self._credentials.token()
        return await self._dialer.endpoint(self.pod, port=self._settings.port, token=token)

    def _note_refusal(self, response: aiohttp.ClientResponse) -> None:
        if response.status in {401, 403}:
            self._credentials.refused()

    # --- the roster ----------------------------------------------------------------------------

    def _roster_to_push(self) -> Roster | None:
        """The roster to push now; None when the coordinator holds it, or no stream is open."""
        wanted, snapshot = self._wanted, self._snapshot
        if wanted is None or snapshot is None or not self._connected:
            return None
        held = (snapshot.roster_epoch, snapshot.roster_digest)
        return None if held == (wanted.epoch, wanted.digest) else wanted

    async def _push(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            failures = 0
            while (roster := self._roster_to_push()) is not None:
                if await self._push_once(roster):
                    # The snapshot that confirms it may be on its way behind an older one.
                    failures, pause = 0, self._settings.confirm_delay
                else:
                    failures += 1
                    pause = self._settings.backoff.delay(failures)
                await self._wait_for_other(roster, pause)

    async def _push_once(self, roster: Roster) -> bool:
        where = {"epoch": roster.epoch, "pod": self.pod.name}
        try:
            await self._put(roster)
        except _FAILURES as error:
            final = isinstance(error, LinkError) and error.final
            self._metrics.roster_pushed("refused" if final else "failed")
            log.warning("Roster push failed: %s: %s", type(error).__name__, error, extra=where)
            if final:
                self._notify(1.0)
            return False
        self._metrics.roster_pushed("accepted")
        log.info("Roster pushed", extra=where)
        return True

    async def _wait_for_other(self, roster: Roster, seconds: float) -> None:
        """Pause before the same roster is pushed again; another one is pushed at once."""
        try:
            async with asyncio.timeout(seconds):
                while self._roster_to_push() == roster:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            return

    async def _put(self, roster: Roster) -> None:
        settings = self._settings
        endpoint = await self._endpoint()
        async with self._dialer.session.put(
            endpoint.url + ROSTER_ROUTE,
            headers=endpoint.headers,
            json=encode(roster),
            timeout=aiohttp.ClientTimeout(total=settings.push_timeout),
            **endpoint.tls,
        ) as response:
            self._note_refusal(response)
            if response.status != 200:
                text = await _error_text(response)
                raise LinkError(f"{response.status} {text}", final=response.status in {400, 409})


def _urgent(snapshot: JobSnapshot) -> tuple[Any, ...]:
    """What is reconciled at once: everything but steps and weight versions."""
    return (
        snapshot.boot,
        snapshot.roster_epoch,
        snapshot.roster_digest,
        tuple((m.pod_uid, m.state, m.reason) for m in snapshot.members),
        snapshot.finished,
        snapshot.groups,
        snapshot.progress.paused,
        snapshot.progress.warning,
        snapshot.progress.learning,
        snapshot.reward_failure,
        snapshot.progress.max_steps,
    )


async def _error_text(response: aiohttp.ClientResponse) -> str:
    return (await response.content.read(500)).decode(errors="replace")


def _failure_of(error: Exception) -> LinkFailure:
    if isinstance(error, LinkError):
        return error.failure
    if isinstance(error.__cause__, UnusableAnswerError):
        return LinkFailure.INCOMPATIBLE
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return LinkFailure.UNTRUSTED
    silent = isinstance(error, SilenceError)
    return LinkFailure.SILENT if silent else LinkFailure.UNREACHABLE


def _failure_of_status(status: int) -> LinkFailure:
    if status in {401, 403}:
        return LinkFailure.REFUSED
    return LinkFailure.INCOMPATIBLE if status in {400, 404, 405} else LinkFailure.UNREACHABLE
