"""The coordinator: drives the protocol's machine and the ledger of prompts over real streams.

Everything here runs in one event loop. Slow work (joining, sending weights) is done by the sender's
MemberDriver in threads, so the loop answers in milliseconds whatever the trainer computes.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rollcall_protocol import env
from rollcall_protocol.config import JobConfig
from rollcall_protocol.coordinator import CoordinatorMachine
from rollcall_protocol.effects import Close, Effect, Fenced, Published, Send, SessionFormed, Timing
from rollcall_protocol.ids import MemberId, Version
from rollcall_protocol.messages import (
    Commit,
    Completion,
    Finished,
    Hello,
    LeaseReturned,
    LeaseRevoked,
    MemberMessage,
    MemberState,
    Progress,
    Seat,
    Wanted,
)
from rollcall_protocol.messages import Snapshot as State
from rollcall_protocol.prompts import Answered, LedgerState, PromptLedger
from rollcall_protocol.roster import Roster
from rollcall_runtime.coordinator import memory
from rollcall_runtime.coordinator.completions import Verdict
from rollcall_runtime.coordinator.links import Links
from rollcall_runtime.coordinator.observer import Delivery, Observer
from rollcall_runtime.coordinator.operator_stream import OperatorStream
from rollcall_runtime.coordinator.sender import SenderDuties
from rollcall_runtime.membership import MemberDriver
from rollcall_runtime.sync.engine import SyncEngine
from rollcall_runtime.sync.staging import Snapshot

log = logging.getLogger(__name__)

GROUP = "default"
LEASE_SECONDS = 120.0


class Coordinator:
    """Membership, weight versions and prompts of one job; owned by trainer rank 0.

    `source` gives the tokens of prompt number i. All methods belong to the event loop that
    called `start`.
    """

    def __init__(
        self, *, config: JobConfig, member: MemberId, address: str, descriptor: str,
        state_dir: Path, engine: SyncEngine, source: Callable[[int], tuple[int, ...]],
        ledger_state: LedgerState | None, observer: Observer,
    ) -> None:  # fmt: skip
        self.config, self.member = config, member
        self._state_dir, self._observer = state_dir, observer
        self._memory = memory.boot(state_dir, member.pod_uid)
        sync, bounds = config.weight_sync, config.membership
        self.machine = CoordinatorMachine(
            job_uid=config.uid, group=GROUP, boot=self._memory.boot,
            sender=Seat(member, address, descriptor),
            fallback_donor=f"{address}:{env.MEMBERSHIP_PORT}",
            timing=Timing(
                settle=bounds.settle, ack_timeout=bounds.ack_timeout,
                join_timeout=sync.join_timeout, stage_timeout=sync.stage_timeout,
                commit_timeout=sync.commit_timeout,
            ),
            max_staleness=config.algorithm.max_staleness,
            since_epoch=self._memory.since_epoch,
        )  # fmt: skip
        algorithm = config.algorithm
        self.ledger = PromptLedger(
            source=source, group_size=algorithm.group_size, batch=algorithm.prompts_per_step,
            max_concurrent=algorithm.max_concurrent_rollouts,
            max_staleness=algorithm.max_staleness, lease_seconds=LEASE_SECONDS,
            seed=config.data_seed, state=ledger_state,
            batches_per_version=config.weight_sync.trigger_parameter_sync_step,
        )  # fmt: skip
        self.duties = SenderDuties(stage_timeout=sync.stage_timeout)
        self.links = Links(self, observer.refused)
        self.stream = OperatorStream(self.report)
        self._driver = MemberDriver(
            member=member, group=f"{config.uid}/{GROUP}", engine=engine, duties=self.duties,
            send=self._sender_said, join_timeout=sync.join_timeout,
        )  # fmt: skip
        self._progress = Progress(0, config.algorithm.max_steps, 0, None)
        self._finished: Finished | None = None
        self._first: Version | None = None
        self._roster_taken, self._batch_ready = asyncio.Event(), asyncio.Event()
        self.fenced = asyncio.Event()  # set when another coordinator has taken over
        self._published: asyncio.Future[None] | None = None
        self._committing_since: float | None = None
        self._states: list[MemberState] = []  # at the last publication
        self._timer: asyncio.TimerHandle | None = None

    # --- the trainer's side --------------------------------------------------------------------

    async def ready(self, *, at_least: int = 0) -> Version:
        """Wait for the first roster; returns the first version to publish.

        Its number is above whatever a member reported, and `at_least` the one given (from a
        checkpoint), so that numbers go on. A restarted coordinator knows its roster and waits
        `settle` for members to come back.
        """
        restored = self._memory.roster
        if restored is not None:
            self.push_roster(restored)
            await asyncio.sleep(self.config.membership.settle)
        await self._roster_taken.wait()
        lineage = self.machine.lineage
        if lineage is None:
            raise RuntimeError("a roster was taken, but no lineage follows from it")
        if self._first is None:
            self._first = Version(lineage, max(at_least, self.machine.highest_number + 1))
        return self._first

    async def publish(self, version: Version, snapshot: Snapshot) -> None:
        """Bring weights to the live session; returns when all of it acked or was excluded.

        Owns `snapshot` from now on; newcomers fetch it until the next one is published.
        """
        began, manifest = time.monotonic(), snapshot.manifest
        self.duties.offer(version, snapshot)
        self._committing_since = None
        published = self._published = asyncio.get_running_loop().create_future()
        self._run(self.machine.publish(version, manifest, began))
        await published
        self.duties.retire_all_but(version)
        # Only now may more be drawn: what is drawn before is as old as the version before.
        self.ledger.version = version.number - (self._first or version).number
        self._dispatch()
        ended = time.monotonic()
        committing_since = self._committing_since or ended
        self._observer.published(
            Delivery(
                version.number, len(self.machine.seated) + 1, manifest.total_bytes,
                committing_since - began, ended - committing_since,
            )
        )  # fmt: skip

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
        await self._driver.close()
        self.duties.close()

    # --- events from the network ---------------------------------------------------------------

    def push_roster(self, roster: Roster) -> None:
        """Take a roster; raises RosterRefusedError."""
        effects = self.machine.push_roster(roster, time.monotonic())
        self._memory = replace(self._memory, roster=roster, since_epoch=self.machine.since_epoch)
        memory.save(self._state_dir, self._memory)
        self.ledger.lineage = self.machine.lineage
        self._roster_taken.set()
        self._run(effects)

    def member_joined(self, hello: Hello) -> None:
        """A stream opened."""
        log.info("member %s of pool %s registered", hello.pod, hello.pool)
        self._run(self.machine.hello(hello, time.monotonic()))

    def member_left(self, member: MemberId, reason: str) -> None:
        """A stream ended."""
        log.info("member %s lost: %s", member, reason)
        self.ledger.forget(member)
        self._run(self.machine.lost(member, reason, time.monotonic()))

    def member_said(self, member: MemberId, message: MemberMessage) -> None:
        """A message of a member."""
        if isinstance(message, Wanted):
            self.ledger.want(member, message.prompts)
            self._dispatch()
        elif isinstance(message, LeaseReturned):
            self.ledger.give_back(message.lease, member)
            self._dispatch()
        elif not isinstance(message, Hello):
            self._run(self.machine.receive(member, message, time.monotonic()))

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
        roster = self.machine.members.roster
        return State(
            pod_uid=self.member.pod_uid,
            boot=self.machine.boot,
            roster_epoch=roster.epoch if roster else 0,
            roster_digest=roster.digest if roster else "",
            members=self.machine.reports(),
            progress=replace(self._progress, paused=self._paused()),
            session=self.machine.last_report,
            finished=self._finished,
            rebuilds=self.machine.rebuilds,
        )

    # --- inside --------------------------------------------------------------------------------

    def _sender_said(self, message: MemberMessage) -> None:
        # Later, not now: the machine is not re-entered while its effects are carried out.
        loop = asyncio.get_running_loop()
        loop.call_soon(self.member_said, self.member, message)

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Close):
                log.warning("closing the stream of %s: %s", effect.to, effect.reason)
                self.links.close(effect.to, effect.reason)
            elif isinstance(effect, SessionFormed):
                self._observer.session_formed(effect.report)
            elif isinstance(effect, Fenced):
                log.error("a member follows session %s: another coordinator", effect.held)
                self.fenced.set()
            elif isinstance(effect, Published) and self._published is not None:
                self._published.set_result(None)
                self._published = None
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
        before, self._states = self._states, [report.state for report in self.machine.reports()]
        return before != self._states

    def _send(self, effect: Send) -> None:
        if isinstance(effect.message, Commit) and self._committing_since is None:
            self._committing_since = time.monotonic()
        if effect.to == self.member:
            self._driver.handle(effect.message)
        else:
            self.links.send(effect.to, effect.message)

    def _dispatch(self) -> None:
        if not self._paused() and self._finished is None:
            serving = [member for member in self.machine.seated if self.machine.serving(member)]
            for member, lease in self.ledger.dispatch(serving, time.monotonic()):
                self.links.send(member, lease)
        self._observer.prompts(self.ledger)

    def _paused(self) -> str:
        least, live = self.config.membership.min_rollouts, len(self.machine.seated)
        return "" if live >= least else f"{live} rollouts in session, minRollouts is {least}"

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [self.machine.next_deadline(), self.ledger.next_deadline()]
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = time.monotonic()
        for member, lease in self.ledger.expire(now):
            self.links.send(member, LeaseRevoked(lease))
        self._run(self.machine.tick(now))
