"""The deterministic mode: the same batches and seeds, whatever the rollouts do and when."""

import random

import pytest

from rollcall_protocol.prompts.prompt_ledger import PromptLedger
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import Completion
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    A,
    B,
    at,
    balanced,
    done,
    leases,
    ledger,
    taken,
)

Batch = list[tuple[int, int]]


def exact(**changes: object) -> PromptLedger:
    return ledger(deterministic=True, max_staleness=0, seed=5, **changes)  # type: ignore[arg-type]


def test_a_seed_follows_from_the_prompt_alone() -> None:
    one, other = exact(), exact()
    first = leases(one, A, 4)
    leases(other, A, 2)
    other.rollout_lost(A)
    second = leases(other, B, 4)
    assert [(lease.prompt, lease.seed) for lease in first] == [
        (lease.prompt, lease.seed) for lease in second
    ]
    assert len({lease.seed for lease in first}) == 4


def test_a_batch_waits_for_exactly_the_next_prompts() -> None:
    prompts = exact(batches_per_version=2)
    given = leases(prompts, A, 6)
    for lease in reversed(given[1:]):
        prompts.complete(done(A, lease))
        assert prompts.take_batch(at(0).number) is None, "prompt 0 is missing"
    prompts.complete(done(A, given[0]))
    assert [item.lease.prompt for item in taken(prompts, 0)] == [0, 1, 2, 3]
    assert prompts.buffered == 2


def test_samples_that_cannot_be_trained_on_are_generated_again() -> None:
    prompts = exact()
    given = leases(prompts, A, 4)
    prompts.complete(done(A, given[0], lineage=Lineage(0, 1)))
    for lease in given[1:]:
        prompts.complete(done(A, lease, version=-1))
    assert prompts.take_batch(at(0).number) is None
    assert not prompts.rejected
    again = leases(prompts, B, 9)
    assert [(lease.prompt, lease.seed) for lease in again] == [
        (lease.prompt, lease.seed) for lease in given
    ]
    assert balanced(prompts)


@pytest.mark.parametrize("seed", range(10))
def test_batches_are_the_same_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    prompts, batches, version = exact(), list[Batch](), 0
    while len(batches) < 6:
        out = [*leases(prompts, A, dice.randint(0, 3)), *leases(prompts, B, dice.randint(0, 3))]
        dice.shuffle(out)
        for lease in out:
            for member in (A, B):
                if dice.random() < 0.7:
                    number = at(version, Lineage(1, 1 + seed))
                    prompts.complete(Completion("job", member, lease.lease_id, number, ()))
        if dice.random() < 0.3:
            prompts.rollout_lost(dice.choice([A, B]))
        if dice.random() < 0.3:
            first = at(version, Lineage(1, 1 + seed))
            prompts = exact(state=prompts.state(), first=first)
        prompts.published(Version(Lineage(1, 1 + seed), at(version).number))
        batch = prompts.take_batch(at(version).number)
        if batch is not None:
            batches.append([(item.lease.prompt, item.lease.seed) for item in batch])
            version += 1
        assert balanced(prompts)
    assert batches == [[(p, 5_000_015 + p) for p in range(at_, at_ + 4)] for at_ in range(0, 24, 4)]
