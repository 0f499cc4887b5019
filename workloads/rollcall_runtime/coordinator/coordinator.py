"""The coordinator: drives the protocol's state machines over the members' streams.

All of it runs in one event loop. Slow work (joining a session, sending weights) runs in threads of
the MemberDriver, so that the loop answers within milliseconds while the trainer computes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rollcall_protocol.job_config import CoordinatorConfig
from rollcall_protocol.membership.bad_messages import MAX_BAD_MESSAGES, BadMessageCounter
from rollcall_protocol.membership.coordinator_effects import (
    CoordinatorEffect,
    CoordinatorSuperseded,
    FalseJoin,
    MemberSuspected,
    SessionFormed,
    SessionTimedOut,
    WrongWeightsReported,
)
from rollcall_protocol.membership.member_table import is_newer_roster
from rollcall_protocol.membership.message_check import (
    BadMessage,
    MessageFault,
    check_hello,
    check_part,
    check_version,
)
from rollcall_protocol.pod_contract import AGENT_PORT, PARTS_PORT
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.job_snapshot import UNTRUSTED, JobSnapshot, SuspicionCause
from rollcall_protocol.wire.learning import LearningReport
from rollcall_protocol.wire.messages import (
    Ack,
    CaughtUp,
    Hello,
    MemberMessage,
    PartDigests,
    SnapshotPartReady,
)
from rollcall_protocol.wire.roster import DEFAULT_GROUP, Roster, RosterMember
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.coordinator import persistent_state
from rollcall_runtime.coordinator.donor_digests import DonorDigests
from rollcall_runtime.coordinator.job_reporter import JobReporter
from rollcall_runtime.coordinator.member_connections import ConnectionLoss, MemberConnections
from rollcall_runtime.coordinator.metrics import CoordinatorMetrics
from rollcall_runtime.coordinator.prompts import MembersForPrompts, PromptMessage, Prompts
from rollcall_runtime.coordinator.published_manifests import PublishedManifests
from rollcall_runtime.coordinator.sender_parts import SenderParts
from rollcall_runtime.coordinator.snapshot_sender import SnapshotSender
from rollcall_runtime.coordinator.state_stream import StateStream
from rollcall_runtime.coordinator.stepping_down import name_leads_elsewhere
from rollcall_runtime.coordinator.sync_group_driver import Publication, SyncGroup, WeightHolder
from rollcall_runtime.coordinator.ticket_issuer import TicketIssuer
from rollcall_runtime.membership.published_versions import TrainerIncarnation
from rollcall_runtime.sync.open_engine import OpenEngine
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

MANY_LEASES = 64  # more than a rollout is sent at once; each may have another's tokens with it


class Coordinator:
    """Members and weight versions of one job; owned by trainer rank 0.

    `engines` has one for each sync group, the default group's first. With several `senders` the
    trainer's other ranks send their own parts, for which `part_patience` seconds are waited (see
    SenderParts). `weights_port` is where the server listens for newcomers. `name` is the host name
    under which members find the coordinator. Versions are recorded in `published` before they are
    sent. `prompts` are what it leases to members. `changed` is called when members, sessions or
    versions have changed. Belongs to one event loop.
    """

    def __init__(
        self,
        *,
        config: CoordinatorConfig,
        member: MemberId,
        address: str,
        name: str,
        state_dir: Path,
        engines: Sequence[OpenEngine],
        metrics: CoordinatorMetrics,
        senders: int = 1,
        part_patience: float | None = None,
        weights_port: int = PARTS_PORT,
        published: PublishedManifests | None = None,
        prompts: Prompts,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._published, self.config, self.member = published, config, member
        self._name, self._address, self._senders = name, address, senders
        self._state_dir, self._metrics = state_dir, metrics
        self._rollout_port = AGENT_PORT if weights_port == PARTS_PORT else None
        self._state = persistent_state.load_and_count_boot(state_dir, member.pod_uid)
        sync = config.weight_sync
        self.snapshots = SnapshotSender(stage_timeout=sync.stage_timeout, delta=sync.delta)
        self.connections = MemberConnections(
            self,
            metrics.refused,
            suspect_after=config.membership.suspect_after,
            heartbeat=config.membership.heartbeat,
            processes=config.trainer_processes,
            max_unread=MANY_LEASES * prompts.longest_message,
        )
        own = {address, *(opened.address for opened in engines if opened.address)}
        self.tickets = TicketIssuer([host_port(each, weights_port) for each in own])
        self._bad_messages = BadMessageCounter()
        self.parts = SenderParts(senders, self.connections.send, patience=part_patience)
        self.digests = DonorDigests(
            held=self.snapshots.held, parts=self.parts, timeout=sync.stage_timeout
        )
        self.stream = StateStream(self.report)
        self.front_stream = StateStream(self.serving_rollouts)
        self.prompts = prompts
        self.prompts.open(
            MembersForPrompts(
                eligible=self._eligible,
                send=self.connections.send,
                suspicious=self._suspicious,
                failure_changed=self.stream.changed,
            )
        )
        self.fenced = asyncio.Event()  # set when another coordinator has taken over
        self.groups = {
            opened.name: SyncGroup(
                config=config,
                opened=opened,
                member=member,
                address=address,
                fallback_donor=host_port(address, weights_port),
                boot=self._state.boot,
                since_epoch=self._state.since_epoch,
                senders=senders,
                weight_handler=self.snapshots,
                connections=self.connections,
                tickets=self.tickets,
                digests=self.digests,
                after=self._after,
                superseded=self._on_superseded,
            )
            for opened in engines
        }
        self._reporter = JobReporter(config, self.groups)
        self._first: Version | None = None
        self._base: Version | None = (
            None  # the version that the last publication brought to all members
        )
        self._roster_taken = asyncio.Event()
        self._connected = asyncio.Event()
        self.reconnect_now = asyncio.Event()  # see ReconnectRequester
        self._group_of: dict[MemberId, SyncGroup] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._succession: asyncio.Task[None] | None = None

    # --- the trainer's side --------------------------------------------------------------------

    def restore(self) -> bool:
        """Take the roster from before a restart and call its members; whether there was one."""
        restored, self._state = self._state.roster, replace(self._state, roster=None)
        if restored is None:
            return False
        self.push_roster(restored)
        self.reconnect_now.set()
        return True

    async def ready(self, *, at_least: int = 0) -> Version:
        """Wait for the first roster; returns the first version to publish.

        Its number is higher than any that a member reported, and at least `at_least` (the one in
        the checkpoint). A restarted coordinator has its roster from before. When training resumes,
        this waits for all members to connect, at most `settle` seconds.
        """
        restored = self.restore()
        await self._roster_taken.wait()
        if restored or at_least > 0:
            await self._wait_for_members(self.config.membership.settle)
        lineage = self.lineage
        if lineage is None:
            raise RuntimeError("the roster gives no lineage")
        if self._first is None:
            highest = max(group.machine.highest_number for group in self.groups.values())
            self._first = Version(lineage, max(at_least, highest + 1))
        return self._first

    @property
    def incarnations(self) -> tuple[TrainerIncarnation, ...]:
        """Former incarnations of this pod's trainer that published weights, oldest first."""
        return self._state.incarnations

    @property
    def rollouts_in_session(self) -> frozenset[str]:
        """The uids of the pods that have seats in the sessions, of all groups."""
        return frozenset(
            seat.pod_uid for group in self.groups.values() for seat in group.machine.seated
        )

    def weight_holders(self) -> list[WeightHolder]:
        """The connected rollouts that hold a whole version, of all groups."""
        return [holder for group in self.groups.values() for holder in group.weight_holders()]

    def begin(self, incarnation: TrainerIncarnation, *, ahead: int = 0) -> None:
        """The first version, `ahead` versions after the checkpoint's, is about to be published."""
        self.prompts.skip_versions(ahead)
        self.progress(step=incarnation.step, number=max(0, incarnation.number - 1), reward=None)
        self._state = self._state.with_incarnation(incarnation)
        persistent_state.save(self._state_dir, self._state)

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of the versions that this incarnation of the trainer publishes."""
        return next(iter(self.groups.values())).machine.lineage

    async def publish(self, version: Version, snapshot: WeightSnapshot) -> Publication:
        """Publish to all groups; returns when every member acked or was excluded.

        Owns `snapshot` from now on; new members fetch it until the next one is published.
        """
        self.snapshots.offer(version, snapshot)
        manifest, others = await self.parts.wait_for_all(version, snapshot.manifest)
        if self._published is not None:
            await asyncio.to_thread(self._published.save, version, manifest)
        delta = await self.snapshots.encode(version, self._base, others)
        publications = await asyncio.gather(
            *(group.publish(version, manifest, delta=delta) for group in self.groups.values())
        )
        self._base = version
        self.snapshots.release_all_but(version)
        self.prompts.published(version)
        publication = Publication.combine(publications)
        self._metrics.published(publication)
        return publication

    def withdraw(self) -> None:
        """Release the newest snapshot: until the next one, new members fetch from peers only.

        They can if its manifest has digests, or if `digests` has made them before.
        """
        self.snapshots.close()

    def progress(
        self,
        *,
        step: int,
        number: int,
        reward: float | None,
        warning: str = "",
        learning: LearningReport | None = None,
        steps_alike: int = 0,
    ) -> None:
        """Record the progress of training, and a `warning` about what failed without ending it."""
        self._reporter.record_progress(
            step=step,
            number=number,
            reward=reward,
            warning=warning,
            learning=learning,
            steps_alike=steps_alike,
        )
        self.stream.progressed()

    def finish(self, *, step: int, error: str = "") -> None:
        """Report to the operator that training has ended."""
        self._reporter.record_result(step, error)
        self.stream.changed()

    async def stop(self) -> None:
        """Close all streams and the engine sessions, and release the weights."""
        self.stream.close()
        self.front_stream.close()
        self.prompts.close()
        self.connections.close_all("the trainer stops")
        if self._timer is not None:
            self._timer.cancel()
        if self._succession is not None:
            self._succession.cancel()
        await asyncio.gather(*(group.close() for group in self.groups.values()))
        self.snapshots.close()

    # --- events from the network ---------------------------------------------------------------

    def push_roster(self, roster: Roster) -> None:
        """Take the job's roster. Raises RosterRefusedError."""
        job = (self.config.uid, DEFAULT_GROUP)
        held = self._state.roster
        if not is_newer_roster(roster, held, job=job, coordinator=self.member.pod_uid):
            return
        since = self._state.since_epoch or roster.epoch
        self._state = replace(self._state, roster=roster, since_epoch=since)
        persistent_state.save(self._state_dir, self._state)
        for group in self.groups.values():
            group.push_roster(roster)
        self._bad_messages.keep_only({seat.pod_uid for seat in roster.members})
        self._roster_taken.set()

    def hello_problem(self, hello: Hello) -> BadMessage | None:
        """Why a member must not register; None if it may."""
        if hello.member.pod_uid in self._bad_messages.excluded:
            problem = f"{hello.pod} was excluded, and is to be replaced"
            return BadMessage(MessageFault.EXCLUDED, problem)
        group = self.groups.get(hello.group)
        if hello.job_uid != self.config.uid or group is None:
            problem = f"this job has no sync group {hello.group!r}"
            return BadMessage(MessageFault.HELLO, problem)
        machine = group.machine
        return check_hello(
            hello,
            roster=self._state.roster,
            senders=self._senders,
            rollout_port=self._rollout_port,
        ) or check_version(hello.held, lineage=machine.lineage, newest=machine.newest)

    def member_connected(self, hello: Hello) -> None:
        """A member's stream opened and its Hello arrived."""
        log.info("member %s of pool %s registered", hello.pod, hello.pool)
        group = self._group_of[hello.member] = self.groups[hello.group]
        self.connections.send(hello.member, self.tickets.open(hello))
        if hello.sender is not None:
            self.parts.connected(hello.member, hello.sender)
        else:
            self.prompts.member_connected(hello.member)
        group.run(group.machine.hello(hello, time.monotonic()))
        self._connected.set()

    def member_disconnected(self, member: MemberId, loss: ConnectionLoss) -> None:
        """A member's stream ended."""
        log.info("member %s lost: %s: %s", member, loss.cause, loss.reason)
        self.prompts.member_disconnected(member)
        self.parts.disconnected(member)
        self.tickets.close(member)
        group = self._group_of.pop(member, None)
        if group is not None:
            now = time.monotonic()
            group.run(group.machine.lost(member, loss.reason, now, cause=loss.cause))

    def member_message(self, member: MemberId, message: MemberMessage) -> None:
        """A message of `member` arrived."""
        group = self._group_of.get(member)
        bad = self._problem(member, message, group) if group is not None else None
        if group is None:
            return
        if bad is not None:
            self.refuse(member, bad)
        elif isinstance(message, PromptMessage):
            self.prompts.member_message(member, message)
        elif isinstance(message, SnapshotPartReady):
            self.parts.part_ready(member, message)
        elif isinstance(message, PartDigests):
            self.parts.digests_arrived(member, message)
        elif not isinstance(message, Hello):
            group.run(group.machine.receive(member, message, time.monotonic()))

    def refuse(self, member: MemberId, bad: BadMessage) -> None:
        """Count a message that has no effect, and log its sender; too many exclude its pod."""
        self._metrics.refused(bad.fault.value)
        log.warning("a message of member %s is refused: %s", member, bad.problem, extra=REPEATED)
        self._suspicious(member, bad.problem)

    def is_member(self, pod_uid: str) -> bool:
        """Whether a pod is on the roster, or drains what it was leased while it was."""
        roster = self._state.roster
        listed = roster is not None and any(m.pod_uid == pod_uid for m in roster.members)
        return listed or pod_uid in self.prompts.running()

    def missing(self) -> tuple[RosterMember, ...]:
        """Members of the roster that have no stream open."""
        roster = self._state.roster
        here = self.connections.pods | self._bad_messages.excluded  # these may not connect
        return tuple(m for m in (roster.members if roster else ()) if m.pod_uid not in here)

    def member_unreachable(self, member: RosterMember, reason: str, seconds: float) -> None:
        """A member of the roster has not connected `seconds` after it was first missed."""
        group = self.groups.get(member.group)
        if group is not None and not group.machine.knows(member.pod_uid):
            self._metrics.suspected(SuspicionCause.NOT_REGISTERED, seconds)
            log.warning("%s has not registered: %s", member.pod, reason)
            group.run(group.machine.absent(member.pod_uid, reason, time.monotonic()))
            self.stream.changed()

    def report(self) -> JobSnapshot:
        """The whole state of the job, for the operator."""
        prompts = self.prompts
        return self._reporter.snapshot(self._state, prompts.running(), prompts.reward_failure)

    @property
    def may_generate(self) -> bool:
        """Whether a rollout samples responses, or may: one of the roster has not registered."""
        tables = [group.machine.members for group in self.groups.values()]
        hellos = [record.hello for table in tables for record in table.by_pod.values()]
        return bool(self.missing()) or any(
            hello.generates for hello in hellos if hello.sender is None
        )

    def serving_rollouts(self) -> ServingRollouts:
        """Where requests may be sent now."""
        found = []
        for group in self.groups.values():
            for member in filter(group.machine.serving, group.machine.seated):
                record = group.machine.members.find(member)
                if record is not None and record.held is not None and record.hello.generates:
                    address, ticket = self.tickets.of_front(record.hello)
                    found.append(ServingRollout(record.hello.pod, address, ticket))
        return ServingRollouts(tuple(found))

    # --- inside --------------------------------------------------------------------------------

    async def _wait_for_members(self, seconds: float) -> None:
        """Wait, no longer than `seconds`, until every member of the roster has a stream open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.missing():
                    self._connected.clear()
                    await self._connected.wait()

    def _problem(
        self, member: MemberId, message: MemberMessage, group: SyncGroup
    ) -> BadMessage | None:
        """What is wrong with a message about sessions or versions; None if it may count."""
        if isinstance(message, (SnapshotPartReady, PartDigests)) and not self.parts.sends(member):
            return BadMessage(MessageFault.PART, "a part of the weights from a rollout")
        if isinstance(message, SnapshotPartReady):
            size = self.config.weight_sync.bucket_bytes
            return check_part(message, awaited=self.parts.awaited, bucket_bytes=size)
        if isinstance(message, (Ack, CaughtUp)):
            machine = group.machine
            return check_version(message.version, lineage=machine.lineage, newest=machine.newest)
        return None

    def _suspicious(self, member: MemberId, problem: str) -> None:
        """`member` sent a bad message. Its pod is excluded for good with the last that may be."""
        group, now = self._group_of.get(member), time.monotonic()
        if group is not None and self._bad_messages.add(member.pod_uid, now):
            reason = f"{MAX_BAD_MESSAGES} bad messages, the last: {problem}"
            cause = SuspicionCause.BAD_MESSAGES
            group.run(group.machine.exclude(member, reason, now, cause=cause))

    def suspicious_pod(self, pod_uid: str, problem: str) -> None:
        """A pod whose stream is open sent a completion that is none."""
        log.warning("a completion of pod %s is refused: %s", pod_uid, problem, extra=REPEATED)
        for member in [member for member in self._group_of if member.pod_uid == pod_uid]:
            self._suspicious(member, f"a completion that is none: {problem}")

    def exclude_for_rewards(self, member: MemberId, reason: str) -> None:
        """`member` lied about rewards: exclude its pod for good."""
        group, now = self._group_of.get(member), time.monotonic()
        self._bad_messages.excluded.add(member.pod_uid)
        if group is not None:
            cause = SuspicionCause.WRONG_REWARDS
            group.run(group.machine.exclude(member, reason, now, cause=cause))

    def _on_superseded(self, claim: CoordinatorSuperseded) -> None:
        if self._succession is None or self._succession.done():
            check = self._check_succession(claim)
            self._succession = asyncio.get_running_loop().create_task(check)

    async def _check_succession(self, claim: CoordinatorSuperseded) -> None:
        """Step down if another pod has this one's name; else exclude who said so."""
        if await name_leads_elsewhere(self._name, self._address):
            log.error("a member holds session %s of another coordinator", claim.held)
            self.fenced.set()
            return
        problem = f"it holds session {claim.held}, and {self._name} still leads to this coordinator"
        self.refuse(claim.member, BadMessage(MessageFault.SESSION, problem))
        group = self._group_of.get(claim.member)
        if group is not None:
            now, cause = time.monotonic(), SuspicionCause.REFUSED
            group.run(group.machine.exclude(claim.member, problem, now, cause=cause))

    def _after(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SessionFormed):
                self._metrics.session_formed(effect.report)
            elif isinstance(effect, SessionTimedOut):
                self._metrics.session_timed_out(effect.bound)
            elif isinstance(effect, MemberSuspected):
                self._suspected(effect)
            elif isinstance(effect, WrongWeightsReported):
                self._metrics.refused("wrong_weights")
                log.warning("%s got wrong weights from %s", effect.newcomer, effect.donor)
            elif isinstance(effect, FalseJoin):
                self._metrics.refused(MessageFault.JOIN.value)
        self.prompts.dispatch()
        self._set_timer()
        self.front_stream.changed()
        self._changed()
        if self._reporter.urgent(effects):
            self.stream.changed()
        else:
            self.stream.progressed()

    def _suspected(self, effect: MemberSuspected) -> None:
        """Measure the detection and give the member's prompts to others at once.

        The time runs from the last bytes of the member, or from the request that it did not answer.
        """
        lied = effect.cause in UNTRUSTED
        self.prompts.member_disconnected(effect.member, keep_tokens=not lied)
        if lied:
            self._bad_messages.excluded.add(effect.member.pod_uid)
        now = time.monotonic()
        since = (
            effect.since
            if effect.since is not None
            else self.connections.last_received_at(effect.member)
        )
        self._metrics.suspected(effect.cause, now - since if since is not None else 0.0)
        log.warning("member %s is suspected: %s: %s", effect.member, effect.cause, effect.reason)

    def _eligible(self) -> list[MemberId]:
        """The members that may get prompts now."""
        if not self._reporter.training:
            return []
        return [
            member
            for group in self.groups.values()
            for member in group.machine.seated
            if group.machine.serving(member)
        ]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [group.machine.next_deadline() for group in self.groups.values()]
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        for group in self.groups.values():
            group.run(group.machine.tick(now))
