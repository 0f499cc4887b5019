"""Calling members of the roster that do not come: they may cling to a predecessor, or hang."""

import asyncio
import contextlib
import errno
import logging
import time
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from rollcall_protocol import env
from rollcall_protocol.wire.messages import ReconnectRequest, dumps
from rollcall_protocol.wire.roster import RosterMember

log = logging.getLogger(__name__)

MAX_CALLS = 5  # that were answered without anything coming of it
LONGEST_PAUSE = 30.0
AT_A_TIME = 64


class MissingMembers(Protocol):
    """Whom to call, and whom to tell; implemented by the coordinator."""

    def missing(self) -> tuple[RosterMember, ...]:
        """Members of the roster that have no stream open."""

    def member_unreachable(self, member: RosterMember, reason: str, seconds: float) -> None:
        """`member` was called and is no better for it, `seconds` after it was first missed."""


@dataclass(slots=True)
class _MissingMember:
    """A missing member; times are seconds of time.monotonic."""

    since: float
    due: float
    pause: float
    answered: int = 0
    told: bool = False


class ReconnectRequester:
    """Posts a request to each missing member after `bound` seconds, and again later.

    That nobody listens there is no news: the container starts, or has ended. A member that takes
    the call but does not answer within the bound, or that answers and still does not come, is told
    as absent and left alone.
    """

    def __init__(
        self,
        *,
        absence: MissingMembers,
        summons: ReconnectRequest,
        token: str,
        bound: float,
        port: int = env.AGENT_PORT,
    ) -> None:
        self._absence, self._body = absence, dumps(summons)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._bound, self._port = bound, port
        self._cases: dict[str, _MissingMember] = {}
        self._at_once = asyncio.Event()

    def request_now(self) -> None:
        """Call all that are missing now: they may be waiting before they try to connect again."""
        self._at_once.set()

    async def run(self) -> None:
        """Look after them until cancelled."""
        async with aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=self._bound),
            connector=aiohttp.TCPConnector(limit=AT_A_TIME, force_close=True),
        ) as session:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._bound / 2):
                        await self._at_once.wait()
                if self._at_once.is_set():
                    self._at_once.clear()
                    missing = self._absence.missing()
                    await asyncio.gather(*(self._greet(session, member) for member in missing))
                due = self._due(time.monotonic())
                await asyncio.gather(*(self._call(session, *case) for case in due))

    async def _greet(self, session: aiohttp.ClientSession, member: RosterMember) -> None:
        """A call that is no test: what comes of it is nobody's fault."""
        try:
            async with session.post(self._url(member), data=self._body):
                pass
        except (TimeoutError, aiohttp.ClientError) as error:
            log.info("%s does not take a call: %s", member.pod, str(error) or "no answer")

    def _url(self, member: RosterMember) -> str:
        return f"http://{member.address}:{self._port}{env.REGISTER_ROUTE}"

    def _due(self, now: float) -> list[tuple[RosterMember, _MissingMember]]:
        missing = self._absence.missing()
        self._cases = {
            m.pod_uid: self._cases.get(m.pod_uid)
            or _MissingMember(now, now + self._bound, self._bound)
            for m in missing
        }
        cases = [(member, self._cases[member.pod_uid]) for member in missing]
        return [(member, case) for member, case in cases if not case.told and now >= case.due]

    async def _call(
        self, session: aiohttp.ClientSession, member: RosterMember, case: _MissingMember
    ) -> None:
        try:
            async with session.post(self._url(member), data=self._body) as answer:
                problem = "" if answer.status == 200 else f"answered a call with {answer.status}"
            case.answered += 1
        except TimeoutError:
            problem = f"did not answer a call for {self._bound:g} s"
        except aiohttp.ClientError as error:
            refused = getattr(error, "errno", None) in {errno.ECONNREFUSED, errno.ECONNRESET}
            problem = "" if refused else f"cannot be called: {type(error).__name__}: {error}"
        if not problem and case.answered >= MAX_CALLS:
            problem = f"answered {MAX_CALLS} calls and did not register"
        now = time.monotonic()
        case.due, case.pause = now + case.pause, min(LONGEST_PAUSE, 2 * case.pause)
        if problem:
            case.told = True
            self._absence.member_unreachable(member, problem, now - case.since)
