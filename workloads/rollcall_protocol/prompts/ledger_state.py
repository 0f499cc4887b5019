"""The part of a checkpoint that the prompt ledger restores; plain data, saved as JSON.

An age counts versions from the oldest token's to the one as which the checkpoint's weights are
published after a restart. What a checkpoint holds is checked when it is read, as samples are when
they come: a bad sample that an earlier release took would otherwise end the trainer after every
restart.
"""

from dataclasses import dataclass, field, replace

from rollcall_protocol.prompts.sample_check import BadSamples, SampleBounds, SampleFault
from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.partial_responses import PartialResponses


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Number of prompts by outcome; `rejected` by reason.

    `skipped` prompts were left out by their source, which cut tokens off `truncated` leased ones.
    """

    dispatched: int = 0
    accepted: int = 0
    requeued: int = 0
    duplicates: int = 0
    resumed_tokens: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True)
class SavedPartial:
    """Partial responses of a prompt that waits."""

    prompt: int
    partial: PartialResponses
    age: int


@dataclass(frozen=True, slots=True)
class SavedSamples:
    """Samples that wait for a batch."""

    lease: PromptLease
    completion: Completion
    age: int


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The data cursor (the next new prompt), the prompts that wait for another lease, partial
    responses of some of them, samples that wait for a batch, and the counters; `trajectories` are
    the names of those that count already.
    """

    cursor: int
    pending: tuple[int, ...]
    partials: tuple[SavedPartial, ...] = ()
    buffer: tuple[SavedSamples, ...] = ()
    counts: LedgerCounts = field(default_factory=LedgerCounts)
    trajectories: tuple[str, ...] = ()


def without_bad_samples(
    state: LedgerState, bounds: SampleBounds
) -> tuple[LedgerState, tuple[BadSamples, ...]]:
    """The state with what can be trained on, and what was left out.

    The prompts of samples that are left out wait for another lease, and count as requeued; those of
    partial responses are sampled from the beginning. The newest version is not known here.
    """
    samples = [(item, _problem(item, bounds)) for item in state.buffer]
    partials = [(item, _problem_of_partial(item, bounds)) for item in state.partials]
    found = tuple(bad for _, bad in (*samples, *partials) if bad is not None)
    if not found:
        return state, ()
    again = [item.lease.prompt for item, bad in samples if bad is not None]
    left = replace(
        state,
        pending=tuple(sorted({*state.pending, *again})),
        buffer=tuple(item for item, bad in samples if bad is None),
        partials=tuple(item for item, bad in partials if bad is None),
        counts=replace(state.counts, requeued=state.counts.requeued + len(again)),
    )
    return left, found


def _problem(item: SavedSamples, bounds: SampleBounds) -> BadSamples | None:
    if item.age < 0:
        return _age(item.age)
    return bounds.check(item.completion, item.lease, newest=None)


def _problem_of_partial(item: SavedPartial, bounds: SampleBounds) -> BadSamples | None:
    if item.age < 0:
        return _age(item.age)
    size = len(item.partial.responses)
    lease = PromptLease("", item.prompt, tokens=(), group_size=size, seed=0)
    return bounds.check_partial(item.partial, lease)


def _age(age: int) -> BadSamples:
    return BadSamples(SampleFault.VERSION, f"{age} versions old")
