"""Prompts by state: waiting for a lease, leased, finished and waiting for a batch.

`born` is the version of a prompt's oldest token, as its distance from the first version of the
trainer's present incarnation; it is negative for tokens of an earlier one.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rollcall_protocol.prompts.partial_builder import PartialBuilder
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.partial_responses import PartialResponses


@dataclass(frozen=True, slots=True)
class ResumablePartial:
    """Tokens of a prompt that another lease continues."""

    partial: PartialResponses
    born: int


class PendingPrompts:
    """Prompts that wait for another lease, the oldest (lowest number) first."""

    def __init__(self, prompts: Iterable[int], kept: Mapping[int, ResumablePartial]) -> None:
        self._kept: dict[int, ResumablePartial | None] = {
            prompt: kept.get(prompt) for prompt in prompts
        }
        self._order = sorted(self._kept)  # a heap

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def items(self) -> dict[int, ResumablePartial | None]:
        """The kept tokens of each prompt, as a copy."""
        return dict(self._kept)

    def age_by(self, versions: int) -> None:
        """Make all tokens older by `versions`."""
        self._kept = {
            prompt: replace(kept, born=kept.born - versions) if kept else None
            for prompt, kept in self._kept.items()
        }

    def put(self, prompt: int, kept: ResumablePartial | None) -> None:
        """Add prompt number `prompt`, with what is kept of an unfinished response."""
        self._kept[prompt] = kept
        heapq.heappush(self._order, prompt)

    def pop(self) -> tuple[int, ResumablePartial | None] | None:
        """Take out the oldest; None if no prompt waits."""
        if not self._order:
            return None
        prompt = heapq.heappop(self._order)
        return prompt, self._kept.pop(prompt)


@dataclass(slots=True)
class HeldLease:
    """A current lease; `kept` are the tokens that it began with.

    `since`: the newest version when it was given out, from this incarnation's first.
    """

    lease: PromptLease
    member: MemberId
    deadline: float
    draft: PartialBuilder
    kept: ResumablePartial | None
    since: int


class LeaseTable:
    """The current leases, by lease id."""

    def __init__(self) -> None:
        self._held: dict[str, HeldLease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldLease]:
        return iter(self._held.values())

    def put(self, held: HeldLease) -> None:
        """Add a lease, in the place of one of the same id."""
        self._held[held.lease.lease_id] = held

    def drop(self, held: HeldLease) -> None:
        """Take a lease out. KeyError if it is not there."""
        del self._held[held.lease.lease_id]

    def current(self, lease: str, member: MemberId) -> HeldLease | None:
        """The lease of this id, if it is current and `member` holds it."""
        held = self._held.get(lease)
        return held if held is not None and held.member == member else None

    def of(self, member: MemberId) -> list[HeldLease]:
        """The leases that `member` holds."""
        return [held for held in self if held.member == member]

    def late(self, now: float) -> list[HeldLease]:
        """Leases past their deadline."""
        return [held for held in self if now >= held.deadline]

    def next_deadline(self) -> float | None:
        """When the first lease expires, in the ledger's seconds; None without leases."""
        return min((held.deadline for held in self), default=None)

    def by_pod(self) -> Counter[str]:
        """Number of leases by the holder's pod uid."""
        return Counter(held.member.pod_uid for held in self)


@dataclass(frozen=True, slots=True)
class BufferedSamples:
    """Finished samples of one prompt that wait for a batch."""

    lease: PromptLease
    completion: Completion
    born: int


class SampleBuffer:
    """Finished samples until a batch takes them."""

    def __init__(self, items: Iterable[BufferedSamples] = ()) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[BufferedSamples]:
        return iter(self._items)

    def age_by(self, versions: int) -> None:
        """Make all samples older by `versions`."""
        self._items = [replace(item, born=item.born - versions) for item in self._items]

    def put(self, item: BufferedSamples) -> None:
        """Add the finished samples of one prompt, behind those that wait."""
        self._items.append(item)

    def drop_older(self, born: int) -> list[BufferedSamples]:
        """Take out the samples of versions before `born`."""
        old = [item for item in self._items if item.born < born]
        self._remove(old)
        return old

    def take_oldest(self, count: int) -> list[BufferedSamples] | None:
        """Take out `count`, those of the oldest versions first; None if there are fewer."""
        return self._take(sorted(self._items, key=lambda item: item.born), count)

    def take_next(self, count: int, *, before: int) -> list[BufferedSamples] | None:
        """Take out `count` in the order of their prompts, all below `before`, or None."""
        fit = [item for item in self._items if item.lease.prompt < before]
        return self._take(sorted(fit, key=lambda item: item.lease.prompt), count)

    def _take(self, fit: list[BufferedSamples], count: int) -> list[BufferedSamples] | None:
        if len(fit) < count:
            return None
        taken = fit[:count]
        self._remove(taken)
        return taken

    def _remove(self, items: list[BufferedSamples]) -> None:
        gone = {item.lease.lease_id for item in items}
        self._items = [item for item in self._items if item.lease.lease_id not in gone]
