"""Groups that no lease asked for: counted as prompts that were dispatched, each once."""

from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import Sample
from tests.unit.rollcall_protocol.prompts.ledger_helpers import at, ledger


def samples(*rewards: float) -> tuple[Sample, ...]:
    return tuple(Sample((7,), (-1.0,), (10,), reward) for reward in rewards)


def take(prompts: PromptLedger, oldest: Version, *rewards: float) -> None:
    prompts.take_group("job-uid", (1, 2), samples(*(rewards or (1.0, 0.0))), oldest)


def balanced(prompts: PromptLedger) -> bool:
    ended = prompts.accepted + prompts.rejected.total() + prompts.requeued
    return prompts.dispatched == ended + prompts.in_flight


def test_groups_become_a_batch() -> None:
    prompts = ledger(batch=2)
    take(prompts, at(0))
    assert prompts.take_batch(10) is None
    take(prompts, at(0), 0.5, 0.25)
    batch = prompts.take_batch(10)
    assert batch is not None
    assert [item.lease.tokens for item in batch] == [(1, 2)] * 2
    assert [s.reward for s in batch[1].completion.samples] == [0.5, 0.25]
    assert len({item.lease.prompt for item in batch}) == 2
    assert (prompts.dispatched, prompts.accepted) == (2, 2)
    assert balanced(prompts)


def test_a_group_of_an_abandoned_lineage_is_rejected() -> None:
    prompts = ledger()
    take(prompts, at(0, Lineage(1, 0)))
    assert prompts.rejected == {RejectionReason.ABANDONED_LINEAGE: 1}
    assert balanced(prompts)


def test_a_group_that_becomes_too_old_is_rejected() -> None:
    prompts = ledger(batch=1)
    take(prompts, at(0))
    prompts.published(at(2))
    assert prompts.take_batch(12) is None
    assert prompts.rejected == {RejectionReason.STALE: 1}
    assert balanced(prompts)
    assert prompts.oldest_wanted == 11


def test_groups_of_like_rewards_are_left_out_where_the_job_asks() -> None:
    prompts = ledger(uniform_limit=4)
    take(prompts, at(0), 1.0, 1.0)
    assert prompts.rejected == {RejectionReason.UNIFORM_REWARDS: 1}
    assert balanced(prompts)


def test_no_more_groups_fit_than_will_be_trained_on_while_fresh() -> None:
    prompts = ledger(batch=1, max_staleness=1)
    for _ in range(2):
        assert prompts.capacity > 0
        take(prompts, at(0))
    assert prompts.capacity == 0


def test_a_checkpoint_keeps_those_that_wait_for_a_batch() -> None:
    prompts = ledger(batch=2)
    take(prompts, at(0))
    prompts.take_batch(10)
    after = ledger(batch=1, state=prompts.state(), first=at(5, Lineage(1, 2)))
    batch = after.take_batch(15)
    assert batch is not None
    assert batch[0].completion.samples == samples(1.0, 0.0)
    take(after, at(5, Lineage(1, 2)))
    assert balanced(after)
