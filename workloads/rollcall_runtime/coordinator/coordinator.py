"""The coordinator: drives the protocol's machine and the ledger of prompts over real streams.

Everything here runs in one event loop. Slow work (joining, sending weights) is done by the sender's
MemberDriver in threads, so the loop answers in milliseconds whatever the trainer computes.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rollcall_protocol.config import JobConfig
from rollcall_protocol.effects import Close, Effect, Published, SessionFormed
from rollcall_protocol.ids import Lineage, MemberId, Version
from rollcall_protocol.members import is_newer
from rollcall_protocol.messages import (
    Completion,
    Hello,
    LeaseReturned,
    LeaseRevoked,
    MemberMessage,
    Sealed,
    Wanted,
)
from rollcall_protocol.prompts import Answered, LedgerState, PromptLedger
from rollcall_protocol.reports import Finished, MemberReport, MemberState, Progress
from rollcall_protocol.reports import Snapshot as State
from rollcall_protocol.roster import DEFAULT_GROUP, Roster
from rollcall_runtime.coordinator import memory
from rollcall_runtime.coordinator.completions import Verdict
from rollcall_runtime.coordinator.group import SyncGroup
from rollcall_runtime.coordinator.links import Links
from rollcall_runtime.coordinator.observer import Delivery, Observer
from rollcall_runtime.coordinator.operator_stream import OperatorStream
from rollcall_runtime.coordinator.parts import Parts
from rollcall_runtime.coordinator.sender import SenderDuties
from rollcall_runtime.sync.opening import OpenEngine
from rollcall_runtime.sync.weights.staging import Snapshot

log = logging.getLogger(__name__)

LEASE_SECONDS = 120.0


class Coordinator:
    """Membership, weight versions and prompts of one job; owned by trainer rank 0.

    `engines` has one for each sync group, the default one first. With several `senders` the
    trainer's other ranks send their own parts. `source` gives the tokens of prompt number i. All
    methods belong to the event loop that called `start`.
    """

    def __init__(
        self, *, config: JobConfig, member: MemberId, address: str,
        state_dir: Path, engines: Sequence[OpenEngine], source: Callable[[int], tuple[int, ...]],
        ledger_state: LedgerState | None, observer: Observer, senders: int = 1,
    ) -> None:  # fmt: skip
        self.config, self.member = config, member
        self._state_dir, self._observer = state_dir, observer
        self._memory = memory.boot(state_dir, member.pod_uid)
        algorithm = config.algorithm
        self.ledger = PromptLedger(
            source=source, group_size=algorithm.group_size, batch=algorithm.prompts_per_step,
            max_concurrent=algorithm.max_concurrent_rollouts,
            max_staleness=algorithm.max_staleness, lease_seconds=LEASE_SECONDS,
            seed=config.data_seed, state=ledger_state,
            batches_per_version=config.weight_sync.trigger_parameter_sync_step,
        )  # fmt: skip
        sync = config.weight_sync
        self.duties = SenderDuties(stage_timeout=sync.stage_timeout, delta=sync.delta)
        self.links = Links(self, observer.refused)
        self.parts = Parts(senders, self.links.send)
        self.stream = OperatorStream(self.report)
        self.fenced = asyncio.Event()  # set when another coordinator has taken over
        self.groups = {
            opened.name: SyncGroup(
                config=config, opened=opened, member=member, address=address,
                boot=self._memory.boot, since_epoch=self._memory.since_epoch, senders=senders,
                duties=self.duties, links=self.links, after=self._after, fenced=self.fenced,
            )
            for opened in engines
        }  # fmt: skip
        self._progress = Progress(0, config.algorithm.max_steps, 0, None)
        self._finished: Finished | None = None
        self._first: Version | None = None
        self._base: Version | None = None  # what all who took part serve
        self._roster_taken, self._batch_ready = asyncio.Event(), asyncio.Event()
        self._group_of: dict[MemberId, SyncGroup] = {}
        self._states: list[MemberState] = []  # at the last publication
        self._timer: asyncio.TimerHandle | None = None

    # --- the trainer's side --------------------------------------------------------------------

    async def ready(self, *, at_least: int = 0) -> Version:
        """Wait for the first roster; returns the first version to publish.

        Its number is above whatever a member reported, and `at_least` the one given (from a
        checkpoint), so that numbers go on. A restarted coordinator knows its roster and waits
        `settle` for members to come back.
        """
        restored, self._memory = self._memory.roster, replace(self._memory, roster=None)
        if restored is not None:
            self.push_roster(restored)
            await asyncio.sleep(self.config.membership.settle)
        await self._roster_taken.wait()
        lineage = self.lineage
        if lineage is None:
            raise RuntimeError("a roster was taken, but no lineage follows from it")
        if self._first is None:
            highest = max(group.machine.highest_number for group in self.groups.values())
            self._first = Version(lineage, max(at_least, highest + 1))
        return self._first

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of versions that this life of the trainer publishes."""
        return next(iter(self.groups.values())).machine.lineage

    async def publish(self, version: Version, snapshot: Snapshot) -> None:
        """Bring weights to all groups; returns when all of them acked or were excluded.

        Owns `snapshot` from now on; newcomers fetch it until the next one is published.
        """
        self.duties.offer(version, snapshot)
        manifest, others = await self.parts.whole(version, snapshot.manifest)
        delta = await self.duties.encode(version, self._base, others)
        outcomes = await asyncio.gather(
            *(group.publish(version, manifest, delta=delta) for group in self.groups.values())
        )
        self._base = version
        self.duties.retire_all_but(version)
        # Only now may more be drawn: what is drawn before is as old as the version before.
        self.ledger.version = version.number - (self._first or version).number
        self._dispatch()
        self._observer.published(
            Delivery(
                version.number, sum(outcome.members for outcome in outcomes),
                max(outcome.sent_bytes for outcome in outcomes),
                max(outcome.stage_seconds for outcome in outcomes),
                max(outcome.commit_seconds for outcome in outcomes),
                all(outcome.delta for outcome in outcomes),
            )
        )  # fmt: skip

    def withdraw(self) -> None:
        """Let go of the newest weights; until the next ones newcomers have their peers alone."""
        self.duties.close()

    async def next_batch(self, number: int) -> list[Answered]:
        """Wait for `promptsPerStep` completions fresh enough to train version `number`."""
        ledger = self.ledger
        while True:
            batch = ledger.take_batch(number)
            self._dispatch()
            if batch is not None:
                return batch
            self._batch_ready.clear()
            await self._batch_ready.wait()

    def progress(self, *, step: int, number: int, reward: float | None) -> None:
        """Note where training stands."""
        steps = self.config.algorithm.max_steps
        self._progress = Progress(step, steps, number, reward, self._paused())
        self.stream.progressed()

    def finish(self, *, step: int, error: str = "") -> None:
        """Tell the operator that training is over."""
        self._finished = Finished(step, error)
        self.stream.changed()

    def ledger_state(self) -> LedgerState:
        """What a checkpoint keeps of the prompts."""
        return self.ledger.state()

    async def stop(self) -> None:
        """Close streams and the sender's engine session."""
        self.stream.close()
        self.links.close_all("the trainer stops")
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(group.close() for group in self.groups.values()))
        self.duties.close()

    # --- events from the network ---------------------------------------------------------------

    def push_roster(self, roster: Roster) -> None:
        """Take the job's roster; raises RosterRefusedError."""
        job = (self.config.uid, DEFAULT_GROUP)
        held = self._memory.roster
        if not is_newer(roster, held, job=job, coordinator=self.member.pod_uid):
            return
        since = self._memory.since_epoch or roster.epoch
        self._memory = replace(self._memory, roster=roster, since_epoch=since)
        memory.save(self._state_dir, self._memory)
        for group in self.groups.values():
            group.push_roster(roster)
        self.ledger.lineage = self.lineage
        self._roster_taken.set()

    def member_joined(self, hello: Hello) -> None:
        """A stream opened."""
        log.info("member %s of pool %s registered", hello.pod, hello.pool)
        group = self.groups.get(hello.group)
        if group is None:
            self.links.close(hello.member, f"this job has no sync group {hello.group!r}")
        else:
            self._group_of[hello.member] = group
            if hello.sender is not None:
                self.parts.registered(hello.member, hello.sender)
            group.run(group.machine.hello(hello, time.monotonic()))

    def member_left(self, member: MemberId, reason: str) -> None:
        """A stream ended."""
        log.info("member %s lost: %s", member, reason)
        self.ledger.forget(member)
        self.parts.left(member)
        group = self._group_of.pop(member, None)
        if group is not None:
            group.run(group.machine.lost(member, reason, time.monotonic()))

    def member_said(self, member: MemberId, message: MemberMessage) -> None:
        """A message of a member."""
        group = self._group_of.get(member)
        if isinstance(message, Wanted):
            self.ledger.want(member, message.prompts)
            self._dispatch()
        elif isinstance(message, LeaseReturned):
            self.ledger.give_back(message.lease, member)
            self._dispatch()
        elif isinstance(message, Sealed):
            self.parts.sealed(member, message)
        elif group is not None and not isinstance(message, Hello):
            group.run(group.machine.receive(member, message, time.monotonic()))

    def complete(self, completion: Completion) -> Verdict:
        """A completion came in."""
        if completion.job_uid != self.config.uid:
            return Verdict.FOREIGN
        if not self.ledger.complete(completion):
            return Verdict.DUPLICATE
        self._batch_ready.set()
        self._dispatch()
        return Verdict.COUNTED

    def report(self) -> State:
        """The whole state for the operator."""
        roster = self._memory.roster
        return State(
            pod_uid=self.member.pod_uid,
            boot=self._memory.boot,
            roster_epoch=roster.epoch if roster else 0,
            roster_digest=roster.digest if roster else "",
            members=self._member_reports(),
            progress=replace(self._progress, paused=self._paused()),
            finished=self._finished,
            groups=tuple(group.report() for group in self.groups.values()),
        )

    # --- inside --------------------------------------------------------------------------------

    def _member_reports(self) -> tuple[MemberReport, ...]:
        found = [report for group in self.groups.values() for report in group.machine.reports()]
        return tuple(sorted(found, key=lambda report: report.pod))

    def _seated(self) -> list[MemberId]:
        return [member for group in self.groups.values() for member in group.machine.seated]

    def _after(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SessionFormed):
                self._observer.session_formed(effect.report)
        self._dispatch()
        self._set_timer()
        if self._urgent(effects):
            self.stream.changed()
        else:
            self.stream.progressed()

    def _urgent(self, effects: list[Effect]) -> bool:
        """Sessions, suspects and who is in sync are told at once; that versions go by is not."""
        if any(isinstance(effect, (SessionFormed, Close)) for effect in effects):
            return True
        if not any(isinstance(effect, Published) for effect in effects):
            return False
        before, self._states = self._states, [report.state for report in self._member_reports()]
        return before != self._states

    def _dispatch(self) -> None:
        if not self._paused() and self._finished is None:
            serving = [
                member
                for group in self.groups.values()
                for member in group.machine.seated
                if group.machine.serving(member)
            ]
            for member, lease in self.ledger.dispatch(serving, time.monotonic()):
                self.links.send(member, lease)
        self._observer.prompts(self.ledger)

    def _paused(self) -> str:
        least, live = self.config.membership.min_rollouts, len(self._seated())
        return "" if live >= least else f"{live} rollouts in session, minRollouts is {least}"

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [group.machine.next_deadline() for group in self.groups.values()]
        deadlines.append(self.ledger.next_deadline())
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        for member, lease in self.ledger.expire(now):
            self.links.send(member, LeaseRevoked(lease))
        for group in self.groups.values():
            group.run(group.machine.tick(now))
