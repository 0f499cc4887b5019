"""Groups whose rewards are all alike are left out, up to a limit for each batch."""

from dataclasses import replace

import pytest

from rollcall_protocol.prompts.dynamic_sampling import UniformGroupFilter, rewards_differ
from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    A,
    balanced,
    done,
    leases,
    ledger,
    taken,
)


@pytest.mark.parametrize(
    ("rewards", "differ"), [((0.5, 0.5), False), ((1.0,), False), ((), False), ((0.0, 1.0), True)]
)
def test_a_group_teaches_if_its_rewards_differ(rewards: tuple[float, ...], differ: bool) -> None:
    assert rewards_differ(rewards) is differ


def test_the_limit_counts_from_batch_to_batch() -> None:
    groups = UniformGroupFilter(2)
    assert [groups.leaves_out((1.0, 1.0)) for _ in range(3)] == [True, True, False]
    assert not groups.leaves_out((0.0, 1.0))
    groups.batch_taken()
    assert groups.leaves_out((1.0, 1.0))


def scored(lease: PromptLease, *rewards: float) -> Completion:
    samples = tuple(Sample((1,), (-0.5,), (0,), reward) for reward in rewards)
    return replace(done(A, lease), samples=samples)


def complete(prompts: PromptLedger, *rewards: float) -> int:
    """Finish the next prompt with these rewards; returns its number."""
    (lease,) = leases(prompts, A, 1)
    assert prompts.complete(scored(lease, *rewards))
    return lease.prompt


def test_prompts_that_teach_nothing_are_replaced_by_others() -> None:
    prompts = ledger(uniform_limit=8)
    kept = []
    for number in range(8):
        if number % 2:
            kept.append(complete(prompts, 0.0, 1.0))
        else:
            complete(prompts, 1.0, 1.0)
    assert [item.lease.prompt for item in taken(prompts, 0)] == kept
    assert prompts.rejected == {RejectionReason.UNIFORM_REWARDS: 4}
    assert balanced(prompts)


def test_a_solved_task_still_fills_batches() -> None:
    prompts = ledger(uniform_limit=3)
    for _ in range(7):
        complete(prompts, 1.0, 1.0)
    assert len(taken(prompts, 0)) == 4
    assert prompts.rejected[RejectionReason.UNIFORM_REWARDS] == 3


def test_without_dynamic_sampling_every_group_counts() -> None:
    prompts = ledger()
    for _ in range(4):
        complete(prompts, 1.0, 1.0)
    assert len(taken(prompts, 0)) == 4
    assert not prompts.rejected


def test_a_late_completion_of_a_uniform_group_is_a_duplicate() -> None:
    prompts = ledger(uniform_limit=8)
    (lease,) = leases(prompts, A, 1)
    assert prompts.complete(scored(lease, 1.0, 1.0))
    assert not prompts.complete(scored(lease, 1.0, 1.0))
    assert prompts.duplicates == 1
