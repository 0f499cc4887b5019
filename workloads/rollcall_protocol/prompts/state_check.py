"""What a checkpoint holds of the ledger is checked when it is read, as samples are when they come.

A bad sample that an earlier release took would otherwise end the trainer after every restart.
"""

from dataclasses import replace

from rollcall_protocol.prompts.ledger_state import LedgerState, SavedPartial, SavedSamples
from rollcall_protocol.prompts.sample_check import BadSamples, SampleBounds, SampleFault
from rollcall_protocol.wire.messages import PromptLease


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
