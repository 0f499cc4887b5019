"""Where prompts are while no rollout works on them: waiting to be drawn, or for a batch.

`born` is a version by its distance from the first one of the trainer's present life; what a former
life drew has a negative one.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rollcall_protocol.messages import Completion, Lease
from rollcall_protocol.partials import Partial


@dataclass(frozen=True, slots=True)
class Kept:
    """Tokens of a prompt that is to go on elsewhere; `born` is the oldest one's version."""

    partial: Partial
    born: int


class Waiting:
    """Prompts to be drawn again, the oldest (lowest number) first."""

    def __init__(self, prompts: Iterable[int], kept: Mapping[int, Kept]) -> None:
        self._kept: dict[int, Kept | None] = {prompt: kept.get(prompt) for prompt in prompts}
        self._order = sorted(self._kept)  # a heap

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def items(self) -> dict[int, Kept | None]:
        """What there is of each, as a copy."""
        return dict(self._kept)

    def put(self, prompt: int, kept: Kept | None) -> None:
        """Add a prompt."""
        self._kept[prompt] = kept
        heapq.heappush(self._order, prompt)

    def pop(self) -> tuple[int, Kept | None] | None:
        """Take out the oldest; None if there is none."""
        if not self._order:
            return None
        prompt = heapq.heappop(self._order)
        return prompt, self._kept.pop(prompt)


@dataclass(frozen=True, slots=True)
class Finished:
    """Samples that wait for a batch; `born` is their oldest token's version."""

    lease: Lease
    completion: Completion
    born: int


class Buffer:
    """Samples until a batch takes them."""

    def __init__(self, items: Iterable[Finished] = ()) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Finished]:
        return iter(self._items)

    def put(self, item: Finished) -> None:
        """Add samples."""
        self._items.append(item)

    def drop_older(self, born: int) -> list[Finished]:
        """Take out what is older than `born`."""
        old = [item for item in self._items if item.born < born]
        self._remove(old)
        return old

    def take_oldest(self, count: int) -> list[Finished] | None:
        """Take out `count`, those of the oldest versions first; None if there are less."""
        return self._take(sorted(self._items, key=lambda item: item.born), count)

    def take_next(self, count: int, *, before: int) -> list[Finished] | None:
        """Take out `count` in the order of their prompts, all below `before`, or None."""
        fit = [item for item in self._items if item.lease.prompt < before]
        return self._take(sorted(fit, key=lambda item: item.lease.prompt), count)

    def _take(self, fit: list[Finished], count: int) -> list[Finished] | None:
        if len(fit) < count:
            return None
        taken = fit[:count]
        self._remove(taken)
        return taken

    def _remove(self, items: list[Finished]) -> None:
        gone = {item.lease.lease for item in items}
        self._items = [item for item in self._items if item.lease.lease not in gone]
