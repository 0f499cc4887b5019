"""Samples that would become too old are lost, or training waits for them."""

from typing import Any

from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.messages import PromptLease
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    FIRST,
    A,
    B,
    at,
    balanced,
    done,
    leases,
    ledger,
    progress_of,
    response,
    taken,
)


def slow_prompt(*, wait: bool, **changes: Any) -> tuple[PromptLedger, PromptLease]:
    """A rollout works on a prompt of version 0 while others finish enough for two batches."""
    prompts = ledger(max_staleness=1, max_concurrent=99, wait_for_old=wait, **changes)
    (slow,) = leases(prompts, B, 1)
    for version in range(2):
        for lease in leases(prompts, A, 99):
            assert prompts.complete(done(A, lease, version=version))
        if version == 0:
            assert len(taken(prompts, 0)) == 4
            prompts.published(at(1))
    return prompts, slow


def test_dropping_discards_samples_of_a_slow_rollout() -> None:
    prompts, slow = slow_prompt(wait=False)
    assert len(taken(prompts, 1)) == 4
    prompts.published(at(2))
    assert prompts.complete(done(B, slow))
    prompts.take_batch(FIRST + 2)
    assert prompts.rejected == {RejectionReason.STALE: 1}


def test_waiting_trains_on_them_in_the_last_batch_that_may() -> None:
    prompts, slow = slow_prompt(wait=True)
    assert prompts.take_batch(FIRST + 1) is None, "the slow prompt would be lost"
    assert prompts.complete(done(B, slow))
    batch = taken(prompts, 1)
    assert slow.prompt in [item.lease.prompt for item in batch]
    assert max(item.age for item in batch) == 1
    assert not prompts.rejected
    assert balanced(prompts)


def test_training_does_not_wait_for_a_prompt_that_may_still_be_late() -> None:
    prompts = ledger(max_staleness=2, max_concurrent=99, wait_for_old=True)
    leases(prompts, B, 1)
    for lease in leases(prompts, A, 8):
        assert prompts.complete(done(A, lease))
    assert len(taken(prompts, 0)) == 4
    prompts.published(at(1))
    assert len(taken(prompts, 1)) == 4


def test_a_lost_rollout_ends_the_wait() -> None:
    prompts, _ = slow_prompt(wait=True)
    prompts.rollout_lost(B)
    assert len(taken(prompts, 1)) == 4
    assert prompts.requeued == 1


def test_a_lease_that_expires_ends_the_wait() -> None:
    prompts, _ = slow_prompt(wait=True)
    assert prompts.expire(now=61)
    assert len(taken(prompts, 1)) == 4


def test_the_tokens_of_an_earlier_lease_count() -> None:
    prompts = ledger(max_staleness=1, max_concurrent=99, wait_for_old=True)
    (slow,) = leases(prompts, B, 1)
    assert prompts.report_progress(progress_of(slow, response(7), response(8)), B, 0)
    for lease in leases(prompts, A, 99):
        assert prompts.complete(done(A, lease))
    assert len(taken(prompts, 0)) == 4
    prompts.published(at(1))
    prompts.rollout_lost(B)
    again = leases(prompts, A, 1)[0]
    assert again.prompt == slow.prompt
    assert again.partial is not None
    for lease in leases(prompts, A, 99):
        assert prompts.complete(done(A, lease, version=1))
    assert prompts.take_batch(FIRST + 1) is None, "its tokens are of version 0"
    assert prompts.complete(done(A, again))
    assert len(taken(prompts, 1)) == 4
