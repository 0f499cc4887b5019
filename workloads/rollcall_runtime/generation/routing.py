"""Which rollout a request goes to: the one that has its beginning in its cache, or the least busy.

Pure: no I/O, no clock. A rollout's engine keeps the keys and values of what it has processed, so a
conversation goes on where its former turns were, unless that rollout has clearly more to do.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence

from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts

BLOCK = 32  # tokens of a prompt that are looked up together
MOST_BLOCKS = 1 << 17  # remembered; the least recently used are forgotten first
SLACK, RATIO = 4, 1.5  # a rollout is clearly busier with more than RATIO * least + SLACK requests
AVOID_SECONDS = 2.0  # after a request failed at a rollout
ABUSE_SECONDS = 300.0  # after an answer that no request can cause


class RequestRoutes:
    """The rollouts that serve, what runs on them, and which prompts each has seen."""

    def __init__(self) -> None:
        self._rollouts: dict[str, ServingRollout] = {}  # by address
        self._running: Counter[str] = Counter()
        self._given: Counter[str] = Counter()  # in all, so that idle ones take turns
        self._avoided: dict[str, float] = {}  # until when
        self._full: dict[str, tuple[int, float]] = {}  # requests that fill it, believed until when
        self._seen: OrderedDict[int, str] = OrderedDict()

    @property
    def rollouts(self) -> tuple[ServingRollout, ...]:
        """All rollouts of the coordinator's newest list, avoided ones too."""
        return tuple(self._rollouts.values())

    def replace(self, serving: ServingRollouts) -> None:
        """The coordinator's newest list. A ticket that has changed is of a new stream."""
        before, self._rollouts = self._rollouts, {r.address: r for r in serving.rollouts}
        for address, rollout in self._rollouts.items():
            known = before.get(address)
            if known is None or known.ticket != rollout.ticket:
                self._avoided.pop(address, None)

    def choose(
        self, prompt: Sequence[int], now: float, *, without: Collection[str] = ()
    ) -> ServingRollout | None:
        """The rollout for a request, which counts as running there until `ended`; None if none can.

        None of the addresses `without`. `now` is in seconds, of any clock.
        """
        fit = [
            a
            for a in self._rollouts
            if self._avoided.get(a, now) <= now and a not in without and self._has_room(a, now)
        ]
        if not fit:
            return None
        blocks = list(_blocks(prompt))
        least = min(self._running[address] for address in fit)
        holder = next((self._seen[b] for b in reversed(blocks) if b in self._seen), None)
        if holder not in fit or self._running[holder] > RATIO * least + SLACK:
            holder = min(fit, key=lambda a: (self._running[a], self._given[a]))
        self._remember(blocks, holder)
        self._running[holder] += 1
        self._given[holder] += 1
        return self._rollouts[holder]

    def ended(self, rollout: ServingRollout) -> None:
        """A request at `rollout` has ended, in whatever way."""
        self._running[rollout.address] -= 1
        if not self._running[rollout.address]:
            del self._running[rollout.address]

    def failed(self, rollout: ServingRollout, now: float, *, abuse: bool = False) -> None:
        """`rollout` was lost or refused: the next requests go elsewhere for AVOID_SECONDS.

        For ABUSE_SECONDS after an `abuse`, or until the rollout has another ticket.
        """
        until = now + (ABUSE_SECONDS if abuse else AVOID_SECONDS)
        self._avoided[rollout.address] = max(until, self._avoided.get(rollout.address, until))
        self._avoided = {a: until for a, until in self._avoided.items() if until > now}

    def full(self, rollout: ServingRollout, now: float) -> None:
        """`rollout` has as many requests as it may: it gets no more for AVOID_SECONDS."""
        running = self._running[rollout.address]  # with the one that it refused
        if running <= 1:  # other fronts fill it
            self.failed(rollout, now)
            return
        most = min(running - 1, self._full.get(rollout.address, (running, 0.0))[0])
        self._full[rollout.address] = (most, now + AVOID_SECONDS)
        self._full = {a: kept for a, kept in self._full.items() if kept[1] > now}

    def _has_room(self, address: str, now: float) -> bool:
        most, until = self._full.get(address, (0, now))
        return until <= now or self._running[address] < most

    def _remember(self, blocks: Sequence[int], address: str) -> None:
        for block in blocks:
            self._seen[block] = address
            self._seen.move_to_end(block)
        while len(self._seen) > MOST_BLOCKS:
            self._seen.popitem(last=False)


def _blocks(prompt: Sequence[int]) -> Iterator[int]:
    """A number for each whole block of `prompt` with all that is before it."""
    before = 0
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        before = hash((before, *prompt[start : start + BLOCK]))
        yield before
