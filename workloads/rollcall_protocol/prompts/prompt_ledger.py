"""The prompt ledger: leases prompts to rollouts and counts each dispatched prompt exactly once.

`dispatched = accepted + rejected + requeued + in flight` holds after every call; samples in the
buffer are still in flight, because they may become too stale to train on. Admission follows AReaL
(arXiv 2505.24298): no more prompts run than batches can take within the staleness bound.

Versions are compared by their distance from the first one of this incarnation of the trainer. The
samples and tokens of a checkpoint have ages instead: version numbers continue above the highest one
that any rollout has seen, so their difference is not the number of updates between old tokens and
the restored weights.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from rollcall_protocol.prompts.dynamic_sampling import UniformGroupFilter
from rollcall_protocol.prompts.ledger_state import (
    LedgerCounts,
    LedgerState,
    SavedPartial,
    SavedSamples,
)
from rollcall_protocol.prompts.partial_builder import PartialBuilder
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_queues import (
    BufferedSamples,
    HeldLease,
    LeaseTable,
    PendingPrompts,
    ResumablePartial,
    SampleBuffer,
)
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_protocol.wire.partial_responses import PartialReport

__all__ = ["CompletedPrompt", "LedgerState", "PromptLedger", "RejectionReason"]


class RejectionReason(StrEnum):
    """Why the samples of a prompt were discarded."""

    STALE = "Stale"
    ABANDONED_LINEAGE = "AbandonedLineage"
    UNIFORM_REWARDS = "UniformRewards"
    BAD_SAMPLES = "BadSamples"
    NO_REWARD = "NoReward"


@dataclass(frozen=True, slots=True)
class CompletedPrompt:
    """A prompt (in its lease), its samples, and their age in versions.

    Use `age`, not the difference of version numbers: after a restart of the trainer that is too
    large.
    """

    lease: PromptLease
    completion: Completion
    age: int = 0


class PromptLedger:
    """Leases prompts to rollouts and gathers their samples until a batch is full.

    `source` gives prompt number i, or None if that is left out; `batches_per_version` batches are
    trained on each version. No prompt is leased before the first version is `published`. With
    `keep_partial` the next lease of a prompt continues the tokens that were reported of its last
    one.

    `deterministic`: seeds follow from the prompt, batches are made of the next prompts in their
    order, and samples that cannot be trained on are generated again from the beginning, never left
    out. So a batch depends on the weights alone, if rollouts generate each lease in a call of its
    own, no version may be stale (`max_staleness` 0), and a checkpoint is taken at a version's last
    batch.

    `uniform_limit`: of the groups whose rewards are all alike so many are left out for each batch.
    `wait_for_old`: no batch is given out while a prompt runs whose samples would be too old for the
    next version, so that training waits for it; otherwise its samples are discarded.

    Ledgers with `shared_credits` lease to the same rollouts; each has a `lease_prefix` of its own.

    Not thread-safe: one event loop owns it.
    """

    def __init__(
        self,
        *,
        source: Callable[[int], Prompt | None],
        group_size: int,
        batch: int,
        max_concurrent: int,
        max_staleness: int,
        lease_seconds: float,
        seed: int = 0,
        state: LedgerState | None = None,
        batches_per_version: int = 1,
        keep_partial: bool = True,
        deterministic: bool = False,
        uniform_limit: int = 0,
        wait_for_old: bool = False,
        shared_credits: dict[MemberId, int] | None = None,
        lease_prefix: str = "",
    ) -> None:
        state = state or LedgerState(0, ())
        counts = state.counts
        self.dispatched, self.accepted = counts.dispatched, counts.accepted
        self.requeued, self.duplicates = counts.requeued, counts.duplicates
        self.resumed_tokens = counts.resumed_tokens
        self.skipped, self.truncated = counts.skipped, counts.truncated
        self.rejected = Counter({RejectionReason(why): n for why, n in counts.rejected.items()})
        self.cursor = state.cursor
        self._source, self._group_size = source, group_size
        self._batch, self._max_concurrent = batch, max_concurrent
        self._max_staleness, self._lease_seconds, self._seed = max_staleness, lease_seconds, seed
        self._per_version = batch * batches_per_version
        self._keeps, self._deterministic = keep_partial and not deterministic, deterministic
        self._uniform_groups, self._wait_for_old = UniformGroupFilter(uniform_limit), wait_for_old
        self._first: Version | None = None
        self._published, self._trained = 0, -1  # newest versions, from the first
        self._accepted_before = self.accepted  # by earlier incarnations
        self._credits = {} if shared_credits is None else shared_credits
        self._lease_prefix = lease_prefix
        self._leases = LeaseTable()
        begun = [
            b for b in state.partials if len(b.partial.responses) == group_size and self._keeps
        ]
        self._waiting = PendingPrompts(
            state.pending,
            {item.prompt: ResumablePartial(item.partial, -item.age) for item in begun},
        )
        self._buffer = SampleBuffer(
            BufferedSamples(b.lease, b.completion, -b.age) for b in state.buffer
        )

    # --- rollouts ------------------------------------------------------------------------------

    def add_credit(self, member: MemberId, prompts: int) -> None:
        """`member` can take `prompts` more prompts, in addition to earlier credits.

        No more count than may run at a time.
        """
        credit = self._credits.get(member, 0) + max(0, prompts)
        self._credits[member] = min(credit, self._max_concurrent)

    def reset_credit(self, member: MemberId) -> None:
        """`member` opened a new stream: the credits that it sent on the old one are void."""
        self._credits.pop(member, None)

    def dispatch(
        self, serving: Iterable[MemberId], now: float
    ) -> list[tuple[MemberId, PromptLease]]:
        """Lease prompts round robin to serving members with credit, as far as admission allows."""
        leases = []
        takers = deque(m for m in serving if self._credits.get(m, 0) > 0)
        while self._first is not None and takers and self.capacity > 0:
            member = takers.popleft()
            self._credits[member] -= 1
            leases.append((member, self._lease(member, self._first.lineage, now)))
            if self._credits[member] > 0:
                takers.append(member)
        return leases

    def lease(self, lease: str, member: MemberId) -> PromptLease | None:
        """The lease of this id, if `member` holds it."""
        held = self._leases.current(lease, member)
        return held.lease if held is not None else None

    def reject(self, lease: str, member: MemberId, why: RejectionReason) -> None:
        """`member` sent samples of a lease that it holds, and they cannot be trained on."""
        held = self._leases.current(lease, member)
        if held is not None:
            self._leases.drop(held)
            self.rejected[why] += 1

    def report_progress(self, report: PartialReport, member: MemberId, now: float) -> bool:
        """Renew a lease and keep its new tokens; False if it is not current any more."""
        held = self._leases.current(report.lease_id, member)
        if held is None:
            return False
        held.deadline = now + self._lease_seconds
        if self._keeps and report.version and self._born(report.version, held) is not None:
            held.draft.take(report)
        return True

    def complete(self, completion: Completion) -> bool:
        """Take samples; False, and counted as a duplicate, if the lease is not current any more."""
        held = self._leases.current(completion.lease_id, completion.member)
        if held is None:
            self.duplicates += 1
            return False
        born = self._born(completion.version, held)
        rewards = (sample.reward for sample in completion.samples)
        if born is not None and self._uniform_groups.leaves_out(rewards):
            self._leases.drop(held)
            self.rejected[RejectionReason.UNIFORM_REWARDS] += 1
        elif born is not None:
            self._leases.drop(held)
            lease = replace(held.lease, partial=None, row={})
            self._buffer.put(BufferedSamples(lease, completion, born))
        elif self._deterministic:
            self._requeue(held)
        else:
            self._leases.drop(held)
            self.rejected[RejectionReason.ABANDONED_LINEAGE] += 1
        return True

    def take_group(
        self, job_uid: str, tokens: tuple[int, ...], samples: tuple[Sample, ...], oldest: Version
    ) -> None:
        """Take samples that no lease asked for, as those of a prompt that was dispatched now.

        RuntimeError before the first version.
        """
        if self._first is None:
            raise RuntimeError("no version is published")
        self.dispatched += 1
        name = f"front.{oldest.lineage.epoch}.{oldest.lineage.boot}.{self.dispatched}"
        lease = PromptLease(name, self.cursor, tokens, len(samples), seed=0)
        self.cursor += 1
        if oldest.lineage != self._first.lineage:
            self.rejected[RejectionReason.ABANDONED_LINEAGE] += 1
        elif self._uniform_groups.leaves_out(sample.reward for sample in samples):
            self.rejected[RejectionReason.UNIFORM_REWARDS] += 1
        else:
            completion = Completion(job_uid, MemberId("front", ""), name, oldest, samples)
            born = oldest.number - self._first.number
            self._buffer.put(BufferedSamples(lease, completion, born))

    def return_lease(self, lease: str, member: MemberId) -> None:
        """A rollout returns a lease unfinished: the prompt is requeued."""
        held = self._leases.current(lease, member)
        if held is not None:
            self._requeue(held)

    def rollout_lost(self, member: MemberId, *, keep_tokens: bool = True) -> None:
        """A rollout is lost: all of its prompts are requeued, with the tokens that it reported.

        Without `keep_tokens` those are dropped, but not what its leases began with.
        """
        self._credits.pop(member, None)
        for held in self._leases.of(member):
            if not keep_tokens:
                held.draft = PartialBuilder(self._group_size, held.lease.partial)
            self._requeue(held)

    def expire(self, now: float) -> list[tuple[MemberId, str]]:
        """Requeue leases past their deadline; returns their holders and ids, to be revoked."""
        late = self._leases.late(now)
        for held in late:
            self._requeue(held)
        return [(held.member, held.lease.lease_id) for held in late]

    # --- trainer -------------------------------------------------------------------------------

    def age_by(self, versions: int) -> None:
        """The weights are newer than the restored state by `versions`: its samples get older."""
        self._waiting.age_by(versions)
        self._buffer.age_by(versions)

    def published(self, version: Version) -> None:
        """Rollouts serve `version` from now on: this incarnation's first one or a later one."""
        self._first = self._first or version
        self._published = version.number - self._first.number

    def take_batch(self, number: int) -> list[CompletedPrompt] | None:
        """A batch fit to train on version `number`, oldest first; None while there are too few."""
        if self._first is None:
            return None
        self._trained = number - self._first.number
        if self._wait_for_old and self._oldest_running() <= self._trained - self._max_staleness:
            return None
        for stale in self._buffer.drop_older(self._trained - self._max_staleness):
            if self._deterministic:
                self._wait(stale.lease.prompt, None)
            else:
                self.rejected[RejectionReason.STALE] += 1
        taken = (
            self._buffer.take_next(self._batch, before=self._first_missing())
            if self._deterministic
            else self._buffer.take_oldest(self._batch)
        )
        if taken is None:
            return None
        self.accepted += len(taken)
        self._uniform_groups.batch_taken()
        return [
            CompletedPrompt(item.lease, item.completion, self._trained - item.born)
            for item in taken
        ]

    # --- figures -------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of leased prompts."""
        return len(self._leases)

    def running_by_pod(self) -> Counter[str]:
        """Number of leased prompts by the rollout's pod uid."""
        return self._leases.by_pod()

    @property
    def oldest_wanted(self) -> int:
        """The lowest number of a version whose samples may still be trained on."""
        if self._first is None:
            return 0
        return self._first.number + self._trained - self._max_staleness

    @property
    def buffered(self) -> int:
        """Number of prompts whose samples wait for a batch."""
        return len(self._buffer)

    @property
    def in_flight(self) -> int:
        """Number of dispatched prompts without an outcome."""
        return self.running + self.buffered

    @property
    def capacity(self) -> int:
        """Number of prompts that may be dispatched now; at or below 0 none."""
        room = (self._max_staleness + self._published + 1) * self._per_version
        spent = self.accepted - self._accepted_before
        return min(
            self._max_concurrent - self.running, room - (spent + self.buffered + self.running)
        )

    def next_deadline(self) -> float | None:
        """When `expire` is due at the latest."""
        return self._leases.next_deadline()

    def state(self) -> LedgerState:
        """State for a checkpoint of the weights that the batch taken last leads to.

        Running prompts are requeued in it; the buffer stays, since the versions that generated it
        lead to the checkpoint's weights. Admission bounds its size. In the deterministic mode its
        prompts are generated again.
        """
        waiting = self._waiting.items()
        waiting |= {held.lease.prompt: self._kept(held) for held in self._leases}
        redrawn = self.buffered if self._deterministic else 0
        if self._deterministic:
            waiting |= {item.lease.prompt: None for item in self._buffer}
        # The checkpoint's weights make one version more than the one that was trained on.
        now = self._trained + 1
        begun = [(prompt, kept) for prompt, kept in sorted(waiting.items()) if kept is not None]
        buffer = () if self._deterministic else self._buffer
        return LedgerState(
            self.cursor,
            tuple(sorted(waiting)),
            partials=tuple(SavedPartial(p, kept.partial, now - kept.born) for p, kept in begun),
            buffer=tuple(SavedSamples(i.lease, i.completion, now - i.born) for i in buffer),
            counts=LedgerCounts(
                self.dispatched,
                self.accepted,
                self.requeued + self.running + redrawn,
                self.duplicates,
                self.resumed_tokens,
                {why.value: count for why, count in self.rejected.items()},
                self.skipped,
                self.truncated,
            ),
        )

    # --- internals --------------------------------------------------------------------------------

    def _born(self, version: Version, held: HeldLease) -> int | None:
        """Distance of `version` from this incarnation's first; None if it is of a lost lineage."""
        if self._first is not None and version.lineage == self._first.lineage:
            return version.number - self._first.number
        if held.kept is not None and version == held.kept.partial.version:
            return held.kept.born
        return None

    def _lease(self, member: MemberId, lineage: Lineage, now: float) -> PromptLease:
        number, kept = self._next_prompt()
        while (prompt := self._source(number)) is None:
            self.skipped += 1
            number, kept = self._next_prompt()
        if kept is not None:
            self.resumed_tokens += kept.partial.tokens
        self.dispatched += 1
        self.truncated += prompt.truncated
        begun = kept.partial if kept else None
        lease = PromptLease(
            f"{self._lease_prefix}{lineage.epoch}.{lineage.boot}.{self.dispatched}",
            number,
            prompt.tokens,
            self._group_size,
            seed=(self._seed * 1_000_003 + (number if self._deterministic else self.dispatched))
            % 2**63,
            partial=begun,
            row=prompt.row,
        )
        draft = PartialBuilder(self._group_size, begun)
        deadline = now + self._lease_seconds
        self._leases.put(HeldLease(lease, member, deadline, draft, kept, self._published))
        return lease

    def _next_prompt(self) -> tuple[int, ResumablePartial | None]:
        """The oldest that waits, or a new one. Tokens too stale to train on are dropped."""
        waiting = self._waiting.pop()
        if waiting is None:
            self.cursor += 1
            return self.cursor - 1, None
        prompt, kept = waiting
        newest = max(self._published, self._trained)
        if kept is not None and newest - kept.born > self._max_staleness:
            kept = None
        return prompt, kept

    def _requeue(self, held: HeldLease) -> None:
        self._leases.drop(held)
        self._wait(held.lease.prompt, self._kept(held))

    def _wait(self, prompt: int, kept: ResumablePartial | None) -> None:
        self.requeued += 1
        self._waiting.put(prompt, kept)

    def _kept(self, held: HeldLease) -> ResumablePartial | None:
        partial = held.draft.partial() if self._keeps else None
        born = self._born(partial.version, held) if partial else None
        return ResumablePartial(partial, born) if partial is not None and born is not None else None

    def _oldest_running(self) -> float:
        """The oldest version that samples of a leased prompt may be of; infinity without one."""

        def born(held: HeldLease) -> int:
            kept = self._kept(held) or held.kept
            return kept.born if kept else held.since

        return min(map(born, self._leases), default=math.inf)

    def _first_missing(self) -> int:
        """The first prompt without samples; all before it are finished or were trained on."""
        unfinished: list[int] = [held.lease.prompt for held in self._leases]
        unfinished += [*self._waiting, self.cursor]
        return min(unfinished)
