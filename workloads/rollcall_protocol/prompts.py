"""The ledger of prompts: who works on what, and that each dispatched prompt is counted once.

`dispatched = accepted + rejected + requeued + in flight` holds after every call; what lies in the
buffer is still in flight, because it may yet be too stale to train on. Admission follows AReaL
(arXiv 2505.24298): what is running may not outgrow what a batch can take within the staleness
bound.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.ids import Lineage, MemberId
from rollcall_protocol.messages import Completion, Lease


class Rejection(StrEnum):
    """Why the samples of a prompt were thrown away."""

    STALE = "Stale"
    ABANDONED_LINEAGE = "AbandonedLineage"


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is out."""

    lease: Lease
    member: MemberId
    deadline: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt (in its lease) and the samples that came back."""

    lease: Lease
    completion: Completion


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a checkpoint keeps: the data cursor and the prompts that were under way."""

    cursor: int
    pending: tuple[int, ...]


class PromptLedger:
    """Leases prompts to rollouts and gathers their samples until a batch is full.

    `source` gives the tokens of prompt number i; `version` counts the versions that rollouts got
    since this ledger began, and on each `batches_per_version` batches are trained. Nothing is
    leased before `lineage` is known. Not thread-safe: one event loop owns it.
    """

    def __init__(
        self, *, source: Callable[[int], tuple[int, ...]], group_size: int,
        batch: int, max_concurrent: int, max_staleness: int, lease_seconds: float, seed: int = 0,
        lineage: Lineage | None = None, state: LedgerState | None = None,
        batches_per_version: int = 1,
    ) -> None:  # fmt: skip
        self.dispatched = self.accepted = self.requeued = self.duplicates = 0
        self.rejected: Counter[Rejection] = Counter()
        self.version = 0
        self.cursor = state.cursor if state else 0
        self._queue: deque[int] = deque(state.pending if state else ())
        self.lineage = lineage
        self._source, self._group_size = source, group_size
        self._batch, self._max_concurrent = batch, max_concurrent
        self._max_staleness, self._lease_seconds, self._seed = max_staleness, lease_seconds, seed
        self._per_version = batch * batches_per_version
        self._wanted: dict[MemberId, int] = {}
        self._held: dict[str, Held] = {}
        self._buffer: deque[tuple[Held, Completion]] = deque()

    # --- rollouts ------------------------------------------------------------------------------

    def want(self, member: MemberId, prompts: int) -> None:
        """`member` can take `prompts` more."""
        self._wanted[member] = self._wanted.get(member, 0) + max(0, prompts)

    def dispatch(self, serving: Iterable[MemberId], now: float) -> list[tuple[MemberId, Lease]]:
        """Lease prompts round robin to serving members that want some, as far as admitted."""
        leases = []
        takers = deque(m for m in serving if self._wanted.get(m, 0) > 0)
        lineage = self.lineage
        while lineage is not None and takers and self.capacity > 0:
            member = takers.popleft()
            self._wanted[member] -= 1
            leases.append((member, self._lease(member, lineage, now)))
            if self._wanted[member] > 0:
                takers.append(member)
        return leases

    def complete(self, completion: Completion) -> bool:
        """Take samples; False (and counted) when the lease is not the current one any more."""
        held = self._held.get(completion.lease)
        if held is None or held.member != completion.member:
            self.duplicates += 1
            return False
        del self._held[completion.lease]
        if completion.version.lineage != self.lineage:
            self.rejected[Rejection.ABANDONED_LINEAGE] += 1
        else:
            self._buffer.append((held, completion))
        return True

    def give_back(self, lease: str, member: MemberId) -> None:
        """A rollout will not finish this lease: the prompt goes to somebody else."""
        held = self._held.get(lease)
        if held is not None and held.member == member:
            self._requeue(held)

    def forget(self, member: MemberId) -> None:
        """A rollout is lost: all of its prompts go to others."""
        self._wanted.pop(member, None)
        for held in [held for held in self._held.values() if held.member == member]:
            self._requeue(held)

    def expire(self, now: float) -> list[tuple[MemberId, str]]:
        """Requeue leases past their deadline; returns whom to tell about which lease."""
        late = [held for held in self._held.values() if now >= held.deadline]
        for held in late:
            self._requeue(held)
        return [(held.member, held.lease.lease) for held in late]

    # --- trainer -------------------------------------------------------------------------------

    def take_batch(self, number: int) -> list[Answered] | None:
        """A batch fit to train on version `number`, oldest first; None while there is none."""
        fit: deque[tuple[Held, Completion]] = deque()
        for held, completion in self._buffer:
            if number - completion.version.number > self._max_staleness:
                self.rejected[Rejection.STALE] += 1
            else:
                fit.append((held, completion))
        self._buffer = fit
        if len(fit) < self._batch:
            return None
        self.accepted += self._batch
        taken = (fit.popleft() for _ in range(self._batch))
        return [Answered(held.lease, completion) for held, completion in taken]

    # --- figures -------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Prompts that rollouts are working on."""
        return len(self._held)

    @property
    def buffered(self) -> int:
        """Prompts whose samples wait for a batch."""
        return len(self._buffer)

    @property
    def in_flight(self) -> int:
        """Dispatched prompts without an outcome."""
        return self.running + self.buffered

    @property
    def capacity(self) -> int:
        """How many more prompts may be dispatched now."""
        room = (self._max_staleness + self.version + 1) * self._per_version
        return min(
            self._max_concurrent - self.running,
            room - (self.accepted + self.buffered + self.running),
        )

    def next_deadline(self) -> float | None:
        """When `expire` is due at the latest."""
        return min((held.deadline for held in self._held.values()), default=None)

    def state(self) -> LedgerState:
        """For a checkpoint: a resumed run draws again what was under way."""
        running = [held.lease.prompt for held in self._held.values()]
        buffered = [held.lease.prompt for held, _ in self._buffer]
        return LedgerState(self.cursor, (*buffered, *running, *self._queue))

    # --- inside --------------------------------------------------------------------------------

    def _lease(self, member: MemberId, lineage: Lineage, now: float) -> Lease:
        if self._queue:
            prompt = self._queue.popleft()
        else:
            prompt, self.cursor = self.cursor, self.cursor + 1
        self.dispatched += 1
        name = f"{lineage.epoch}.{lineage.boot}.{self.dispatched}"
        seed = self._seed * 1_000_003 + self.dispatched
        lease = Lease(name, prompt, self._source(prompt), self._group_size, seed)
        self._held[name] = Held(lease, member, now + self._lease_seconds)
        return lease

    def _requeue(self, held: Held) -> None:
        del self._held[held.lease.lease]
        self.requeued += 1
        self._queue.append(held.lease.prompt)
