"""Asks members of the roster that have no stream open to connect to this coordinator.

Such a member may still be connected to a former coordinator pod, or it may hang.
"""

import asyncio
import contextlib
import errno
import logging
import time
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.messages import ReconnectRequest, dumps
from rollcall_protocol.wire.roster import RosterMember
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session

log = logging.getLogger(__name__)

MAX_ANSWERED = 5  # requests that a member answers without opening a stream
LONGEST_DELAY = 30.0  # seconds between requests to one member
CONCURRENT_REQUESTS = 64


class MissingMembers(Protocol):
    """Knows which members are missing; implemented by the coordinator."""

    @property
    def reconnect_now(self) -> asyncio.Event:
        """Set when all missing members are to be asked at once."""

    def missing(self) -> tuple[RosterMember, ...]:
        """Members of the roster that have no stream open."""

    def member_unreachable(self, member: RosterMember, reason: str, seconds: float) -> None:
        """`member` was asked and has not connected, `seconds` after it was first missed."""


@dataclass(slots=True)
class _MissingMember:
    """A missing member; times are seconds of time.monotonic."""

    since: float
    due: float
    backoff: BackoffDelays
    answered: int = 0
    reported: bool = False


class ReconnectRequester:
    """Posts `request` to each member that is missing for `bound` seconds, and again later.

    It shows no token: the member looks up the coordinator itself.

    A refused connection is no failure: the container is starting, or has ended. A member is
    reported as unreachable, and not asked again, if it accepts the connection but does not answer
    within the bound, or answers MAX_ANSWERED requests without opening a stream.
    """

    def __init__(
        self,
        *,
        members: MissingMembers,
        request: ReconnectRequest,
        bound: float,
        port: int = pod_contract.AGENT_PORT,
    ) -> None:
        self._members, self._body = members, dumps(request)
        self._bound, self._port = bound, port
        self._missing: dict[str, _MissingMember] = {}

    async def run(self) -> None:
        """Send requests until cancelled."""
        async with plain_session(
            timeout=aiohttp.ClientTimeout(total=self._bound),
            connector=aiohttp.TCPConnector(limit=CONCURRENT_REQUESTS, force_close=True),
        ) as session:
            now_wanted = self._members.reconnect_now
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._bound / 2):
                        await now_wanted.wait()
                if now_wanted.is_set():
                    now_wanted.clear()
                    members = self._members.missing()
                    await asyncio.gather(*(self._ask_once(session, member) for member in members))
                due = self._due(time.monotonic())
                await asyncio.gather(*(self._ask(session, *missing) for missing in due))

    async def _ask_once(self, session: aiohttp.ClientSession, member: RosterMember) -> None:
        """Send a request whose outcome is only logged: the member may not be due yet."""
        try:
            async with session.post(self._url(member), data=self._body):
                pass
        except (TimeoutError, aiohttp.ClientError) as error:
            log.info(
                "%s did not take a reconnect request: %s", member.pod, str(error) or "no answer"
            )

    def _url(self, member: RosterMember) -> str:
        return f"http://{host_port(member.address, self._port)}{pod_contract.REGISTER_ROUTE}"

    def _due(self, now: float) -> list[tuple[RosterMember, _MissingMember]]:
        members = self._members.missing()
        self._missing = {
            member.pod_uid: self._missing.get(member.pod_uid) or self._new(now)
            for member in members
        }
        found = [(member, self._missing[member.pod_uid]) for member in members]
        return [
            (member, missing)
            for member, missing in found
            if not missing.reported and now >= missing.due
        ]

    def _new(self, now: float) -> _MissingMember:
        backoff = BackoffDelays(first=self._bound, longest=max(self._bound, LONGEST_DELAY))
        return _MissingMember(now, now + self._bound, backoff)

    async def _ask(
        self, session: aiohttp.ClientSession, member: RosterMember, missing: _MissingMember
    ) -> None:
        try:
            async with session.post(self._url(member), data=self._body) as answer:
                status = answer.status
            busy = 503  # unauthenticated clients ask it as well
            problem = "" if status in {200, busy} else f"answered a reconnect request with {status}"
            missing.answered += 1
        except TimeoutError:
            problem = f"did not answer a reconnect request within {self._bound:g} s"
        except aiohttp.ClientError as error:
            refused = getattr(error, "errno", None) in {errno.ECONNREFUSED, errno.ECONNRESET}
            problem = "" if refused else f"cannot be reached: {type(error).__name__}: {error}"
        if not problem and missing.answered >= MAX_ANSWERED:
            problem = f"answered {MAX_ANSWERED} reconnect requests and opened no stream"
        now = time.monotonic()
        missing.due = now + missing.backoff.next_delay()
        if problem:
            missing.reported = True
            self._members.member_unreachable(member, problem, now - missing.since)
