"""What a checkpoint holds of the ledger and cannot be trained on is sampled again."""

from dataclasses import replace

from rollcall_protocol.prompts.ledger_state import (
    LedgerCounts,
    LedgerState,
    SavedPartial,
    SavedSamples,
    without_bad_samples,
)
from rollcall_protocol.prompts.sample_check import SampleBounds, SampleFault
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_protocol.wire.partial_responses import PartialResponses, Response
from tests.unit.rollcall_protocol.prompts.ledger_helpers import balanced, ledger

BOUNDS = SampleBounds(vocabulary=10, positions=6)
VERSION = Version(Lineage(1, 1), 7)
GOOD = Sample((1,), (-1.0,), (7,), 1.0)
NO_NUMBER = replace(GOOD, reward=float("nan"))
COUNTS = LedgerCounts(dispatched=4, requeued=2)


def samples(prompt: int, *group: Sample, age: int = 1) -> SavedSamples:
    lease = PromptLease(f"1.1.{prompt}", prompt, (1, 2), group_size=2, seed=0)
    member = MemberId("pod", "boot")
    return SavedSamples(lease, Completion("job", member, lease.lease_id, VERSION, group), age)


def partial(prompt: int, *responses: Response, age: int = 1) -> SavedPartial:
    return SavedPartial(prompt, PartialResponses(VERSION, responses), age)


GOOD_STATE = LedgerState(
    cursor=4,
    pending=(2, 3),
    partials=(partial(2, Response((1,), (-1.0,), (7,)), Response()),),
    buffer=(samples(0, GOOD, GOOD), samples(1, GOOD, GOOD)),
    counts=COUNTS,
)


def test_a_state_without_fault_is_kept_as_it_is() -> None:
    assert without_bad_samples(GOOD_STATE, BOUNDS) == (GOOD_STATE, ())


def test_the_prompt_of_a_bad_sample_waits_for_another_lease_and_the_counts_balance() -> None:
    bad = replace(GOOD_STATE, buffer=(samples(0, GOOD, NO_NUMBER), samples(1, GOOD, GOOD)))
    left, (problem,) = without_bad_samples(bad, BOUNDS)
    assert problem.fault is SampleFault.REWARD
    assert left.pending == (0, 2, 3)
    assert left.buffer == (samples(1, GOOD, GOOD),)
    assert balanced(ledger(state=left))


def test_tokens_that_cannot_be_are_sampled_again() -> None:
    token = partial(2, Response((10,), (-1.0,), (7,)), Response())
    left, (problem,) = without_bad_samples(replace(GOOD_STATE, partials=(token,)), BOUNDS)
    assert problem.fault is SampleFault.TOKEN
    assert (left.partials, left.pending) == ((), (2, 3))


def test_samples_of_the_future_or_of_a_number_that_no_job_reaches_are_left_out() -> None:
    future = replace(GOOD_STATE, buffer=(samples(0, GOOD, GOOD, age=-(10**9)),))
    _, (problem,) = without_bad_samples(future, BOUNDS)
    assert problem.fault is SampleFault.VERSION
    huge = replace(GOOD, versions=(2**60,))
    _, (problem,) = without_bad_samples(
        replace(GOOD_STATE, buffer=(samples(0, huge, GOOD),)), BOUNDS
    )
    assert problem.fault is SampleFault.VERSION
    young = replace(GOOD_STATE, partials=(partial(2, Response(), Response(), age=-1),))
    assert len(without_bad_samples(young, BOUNDS)[1]) == 1
