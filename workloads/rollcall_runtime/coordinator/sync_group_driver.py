"""One named sync group of a job: its state machine, its engine, and rank 0 as a member of it.

A job has one group for each weight-sync engine that its rollouts need (one for each vendor of
accelerators, say). The trainer is a member of every group and sends the same weights to all.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rollcall_protocol.job_config import CoordinatorConfig
from rollcall_protocol.membership.coordinator_effects import (
    CloseStream,
    CoordinatorEffect,
    CoordinatorSuperseded,
    ProtocolTimeouts,
    SendMessage,
    SessionFormed,
    VersionPublished,
)
from rollcall_protocol.membership.coordinator_machine import CoordinatorMachine
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.job_snapshot import KEPT_SESSIONS, GroupReport, SessionReport
from rollcall_protocol.wire.messages import (
    MACHINE_MESSAGES,
    CatchUp,
    CaughtUp,
    Commit,
    MemberMessage,
    Seat,
    Stage,
    WeightDelta,
)
from rollcall_protocol.wire.roster import Roster
from rollcall_protocol.wire.weight_manifest import BucketCheck, WeightManifest
from rollcall_runtime.coordinator.donor_digests import DonorDigests
from rollcall_runtime.coordinator.member_connections import MemberConnections
from rollcall_runtime.coordinator.ticket_issuer import TicketIssuer
from rollcall_runtime.membership.driver import MemberDriver, WeightHandler
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.open_engine import OpenEngine

log = logging.getLogger(__name__)

MAX_DETAIL = 300  # characters of a session's cause; each report has the last KEPT_SESSIONS


@dataclass(frozen=True, slots=True)
class Publication:
    """How a version reached the live session. A stage that was repeated counts once.

    `members` took part, the trainer's ranks included. `received_bytes`, summed over rollouts, were
    those of a `delta` or of the whole version.
    """

    version: Version
    members: int
    received_bytes: int
    stage_seconds: float
    commit_seconds: float
    delta: bool

    @classmethod
    def combine(cls, parts: Sequence["Publication"]) -> "Publication":
        """The publication of one version to several groups, which ran side by side."""
        return cls(
            version=parts[0].version,
            members=sum(part.members for part in parts),
            received_bytes=sum(part.received_bytes for part in parts),
            stage_seconds=max(part.stage_seconds for part in parts),
            commit_seconds=max(part.commit_seconds for part in parts),
            delta=all(part.delta for part in parts),
        )


@dataclass(frozen=True, slots=True)
class WeightHolder:
    """A connected rollout that serves the whole of `version`; `address` is host:port."""

    version: Version
    address: str


class SyncGroup:
    """Executes the effects of its state machine. Belongs to one event loop.

    `after` is called with the effects of each event once they are executed; `superseded` when a
    member says that it follows another coordinator. Newcomers get `tickets` for their donors, and
    `digests` of what they fetch from them.
    """

    def __init__(
        self,
        *,
        config: CoordinatorConfig,
        opened: OpenEngine,
        member: MemberId,
        address: str,
        fallback_donor: str,
        boot: int,
        since_epoch: int | None,
        senders: int,
        weight_handler: WeightHandler,
        connections: MemberConnections,
        tickets: TicketIssuer,
        digests: DonorDigests,
        after: Callable[[list[CoordinatorEffect]], None],
        superseded: Callable[[CoordinatorSuperseded], None],
    ) -> None:
        sync, bounds = config.weight_sync, config.membership
        self.name = opened.name
        self.machine = CoordinatorMachine(
            job_uid=config.uid,
            group=opened.name,
            boot=boot,
            sender=Seat(member, opened.address or address, opened.descriptor),
            fallback_donor=fallback_donor,
            timeouts=ProtocolTimeouts(
                settle=bounds.settle,
                ack_timeout=bounds.ack_timeout,
                join_timeout=sync.join_timeout,
                stage_timeout=sync.stage_timeout,
                commit_timeout=sync.commit_timeout,
            ),
            max_staleness=config.max_staleness,
            since_epoch=since_epoch,
            senders=senders,
        )
        self._driver = MemberDriver(
            member=member,
            group=f"{config.uid}/{opened.name}",
            engine=opened.engine,
            weight_handler=weight_handler,
            send=self._on_own_message,
            join_timeout=sync.join_timeout,
        )
        self._member, self._connections, self._tickets = member, connections, tickets
        self._digests, self._asked = digests, set[asyncio.Task[None]]()
        self._after, self._superseded = after, superseded
        self._published: asyncio.Future[None] | None = None
        self._committing_since: float | None = None
        self._sent, self._sent_delta = 0, False
        self._sessions: deque[SessionReport] = deque(maxlen=KEPT_SESSIONS)

    def push_roster(self, roster: Roster) -> None:
        """Take this group's members of the job's roster; does nothing if they are unchanged."""
        mine = tuple(member for member in roster.members if member.group == self.name)
        own = replace(roster, group=self.name, members=mine)
        held = self.machine.members.roster
        if held is None or own.digest != held.digest:
            self.run(self.machine.push_roster(own, time.monotonic()))

    async def publish(
        self, version: Version, manifest: WeightManifest, *, delta: WeightDelta | None = None
    ) -> Publication:
        """Publish `version`; returns when each member of the live session acked or was excluded."""
        began, self._committing_since = time.monotonic(), None
        self._sent, self._sent_delta = 0, False
        published = self._published = asyncio.get_running_loop().create_future()
        self.run(self.machine.publish(version, manifest, began, delta=delta))
        await published
        ended = time.monotonic()
        committing_since = self._committing_since or ended
        receivers = len(self.machine.seated)
        return Publication(
            version=version,
            members=len(self.machine.senders) + receivers,
            received_bytes=self._sent * receivers,
            stage_seconds=committing_since - began,
            commit_seconds=ended - committing_since,
            delta=self._sent_delta,
        )

    def run(self, effects: list[CoordinatorEffect]) -> None:
        """Execute the effects of the state machine."""
        for effect in effects:
            if isinstance(effect, SendMessage):
                self._send(effect)
            elif isinstance(effect, CloseStream):
                log.warning("closing the stream of %s: %s", effect.to, effect.reason)
                self._connections.close(effect.to, effect.reason)
            elif isinstance(effect, CoordinatorSuperseded):
                self._superseded(effect)
            elif isinstance(effect, VersionPublished) and self._published is not None:
                self._published.set_result(None)
                self._published = None
            elif isinstance(effect, SessionFormed):
                detail = effect.report.detail[:MAX_DETAIL]
                self._sessions.append(replace(effect.report, detail=detail, time=time.time()))
        self._after(effects)

    def report(self) -> GroupReport:
        """The group's part of the job snapshot."""
        roster = self.machine.members.roster
        epoch, sessions = roster.epoch if roster else 0, tuple(self._sessions)
        last = sessions[-1] if sessions else None
        machine = self.machine
        return GroupReport(
            name=self.name,
            epoch=epoch,
            session=last,
            rebuilds=machine.formation.rebuilds,
            formed=machine.formed,
            sessions=sessions,
            lost_sessions=machine.losses.report(),
        )

    def weight_holders(self) -> list[WeightHolder]:
        """The connected rollouts that hold a whole version, not a shard of it."""
        return [
            WeightHolder(member.held, member.donor_address)
            for member in self.machine.members.by_pod.values()
            if member.held is not None and member.connected and not member.hello.shard
        ]

    async def close(self) -> None:
        """Abort the engine session."""
        for task in self._asked:
            task.cancel()
        await self._driver.close()

    def _send(self, effect: SendMessage) -> None:
        if isinstance(effect.message, Commit) and self._committing_since is None:
            self._committing_since = time.monotonic()
        if isinstance(effect.message, Stage):
            sent = effect.message.delta or effect.message
            self._sent = sent.manifest.total_bytes
            self._sent_delta = effect.message.delta is not None
        if effect.to == self._member:
            self._driver.handle(effect.message)
        elif isinstance(effect.message, CatchUp):
            self._send_to_newcomer(effect.to, effect.message)
        else:
            self._connections.send(effect.to, effect.message)

    def _send_to_newcomer(self, newcomer: MemberId, asked: CatchUp) -> None:
        if asked.manifest.check is not BucketCheck.BLAKE3:
            task = asyncio.get_running_loop().create_task(self._send_digested(newcomer, asked))
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
            return
        tickets = self._tickets.tickets(asked.version, asked.donors)
        self._connections.send(newcomer, replace(asked, tickets=tickets))

    async def _send_digested(self, newcomer: MemberId, asked: CatchUp) -> None:
        """Send it once there are digests; without them that catch-up has failed, and is repeated.

        A newcomer that has the version by then answers that it is caught up.
        """
        try:
            manifest = await self._digests.of(asked.version, asked.manifest)
        except SyncError as error:
            log.warning("no digests for %s: %s", newcomer, error)
            failed = CaughtUp(asked.version, error=str(error))
            self.run(self.machine.receive(newcomer, failed, time.monotonic()))
            return
        self._send_to_newcomer(newcomer, replace(asked, manifest=manifest))

    def _on_own_message(self, message: MemberMessage) -> None:
        # Not now: the machine must not be re-entered while its effects are executed.
        asyncio.get_running_loop().call_soon(self._receive, message)

    def _receive(self, message: MemberMessage) -> None:
        if isinstance(message, MACHINE_MESSAGES):
            self.run(self.machine.receive(self._member, message, time.monotonic()))
