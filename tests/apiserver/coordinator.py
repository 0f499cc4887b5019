"""A coordinator for tests without containers: takes rosters, and reports what a test sets.

It listens where the pod of trainer rank 0 would, and refuses rosters by the protocol's own rules.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.membership.member_table import is_newer_roster
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import (
    KEPT_SESSIONS,
    GroupReport,
    JobSnapshot,
    MemberReport,
    MemberState,
    SessionCause,
    SessionReport,
    TrainingProgress,
)
from rollcall_protocol.wire.roster import Roster
from rollcall_runtime.coordinator.roster_push import handle_roster_push
from rollcall_runtime.coordinator.state_stream import StateStream
from rollcall_runtime.worker.auth import Authenticator
from rollcall_runtime.worker.identity.roles import RoleBook
from rollcall_runtime.worker.identity.token_verifier import TokenVerifier


@dataclass(frozen=True, slots=True)
class Member:
    """What to say of a pod."""

    state: MemberState = MemberState.IN_SYNC
    reason: str = ""
    running: int = 1


@dataclass(slots=True)
class Coordinator:
    """One pod's. `rosters` are those that counted; `refused` counts the others, and `outsiders`
    requests without a token of the operator, which `verifier` checks, by reason.

    Every member of the roster is InSync unless `members` (by pod uid) says otherwise.
    """

    pod_uid: str
    address: str
    job_uid: str
    verifier: TokenVerifier
    certificate: ssl.SSLContext
    rosters: list[Roster] = field(default_factory=list)
    refused: int = 0
    outsiders: list[str] = field(default_factory=list)
    sessions: list[SessionReport] = field(default_factory=list)  # after the first of the roster
    _members: dict[str, Member] = field(default_factory=dict)
    _stream: StateStream = field(init=False)
    _runner: web.AppRunner | None = None

    def __post_init__(self) -> None:
        self._stream = StateStream(self._snapshot)

    async def start(self) -> None:
        """Listen on the pod's address."""
        app = web.Application()
        guard = Authenticator(self.verifier, RoleBook("job", 1), self.outsiders.append).guard
        stream, roster = pod_contract.OPERATOR_STREAM_ROUTE, pod_contract.ROSTER_ROUTE
        app.router.add_get(stream, guard(stream, self._stream.serve))
        app.router.add_put(roster, guard(roster, self._take))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        port = pod_contract.MEMBERSHIP_PORT
        await web.TCPSite(self._runner, self.address, port, ssl_context=self.certificate).start()

    async def stop(self) -> None:
        """End its streams, as a killed process would."""
        self._stream.close()
        if self._runner is not None:
            await self._runner.cleanup()
        # aiohttp knows none whose TLS handshake has not ended.
        loop: Any = asyncio.get_running_loop()
        for transport in list(loop._transports.values()):
            if (transport.get_extra_info("sockname") or ("",))[0] == self.address:
                transport.abort()
        await asyncio.sleep(0)

    async def start_again(self) -> None:
        """Listen after `stop`, with the roster that it held."""
        self._stream = StateStream(self._snapshot)
        await self.start()

    def say(self, members: Mapping[str, Member]) -> None:
        """What it says from now on, by pod uid."""
        self._members = dict(members)
        self._stream.changed()

    def form(self, cause: SessionCause, detail: str) -> SessionReport:
        """It forms another session of the roster in force."""
        roster = self.rosters[-1]
        session = SessionId(roster.epoch, 1, len(self.sessions) + 2)
        size = len(roster.members) + 1
        self.sessions.append(SessionReport(session, cause, size, 0.1, detail, time.time()))
        self._stream.changed()
        return self.sessions[-1]

    @property
    def roster(self) -> Roster | None:
        """The one in force."""
        return self.rosters[-1] if self.rosters else None

    async def _take(self, request: web.Request) -> web.Response:
        return await handle_roster_push(request, self._push, self._count)

    def _push(self, roster: Roster) -> None:
        job = (self.job_uid, "default")
        if is_newer_roster(roster, self.roster, job=job, coordinator=self.pod_uid):
            self.rosters.append(roster)
            self._stream.changed()

    def _count(self, _: str) -> None:
        self.refused += 1

    def _snapshot(self) -> JobSnapshot:
        roster = self.roster
        seats = roster.members if roster else ()
        members = tuple(
            MemberReport(
                pod_uid=seat.pod_uid,
                pod=seat.pod,
                pool=seat.pool,
                state=member.state,
                version=1,
                reason=member.reason,
                running=member.running,
            )
            for seat in seats
            for member in (self._members.get(seat.pod_uid, Member()),)
        )
        return JobSnapshot(
            pod_uid=self.pod_uid,
            boot=1,
            roster_epoch=roster.epoch if roster else 0,
            roster_digest=roster.digest if roster else "",
            members=members,
            progress=TrainingProgress(step=1, max_steps=100, weight_version=1, rollout_reward=None),
            groups=(self._group(roster),) if roster else (),
        )

    def _group(self, roster: Roster) -> GroupReport:
        first = SessionReport(
            session=SessionId(roster.epoch, 1, 1),
            cause=SessionCause.NEW_ROSTER,
            members=len(roster.members) + 1,
            seconds=0.1,
        )
        sessions = (first, *self.sessions)[-KEPT_SESSIONS:]
        rebuilds = len(self.rosters)
        return GroupReport(
            "default", roster.epoch, sessions[-1], rebuilds, formed=True, sessions=sessions
        )
