"""The ledger: every dispatched prompt has one outcome, and admission bounds staleness."""

import random

import pytest

from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import PromptLease
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    FIRST,
    LINEAGE,
    A,
    B,
    balanced,
    done,
    leases,
    ledger,
    progress_of,
    response,
    taken,
)


def publish(prompts: PromptLedger, version: int) -> None:
    prompts.published(Version(LINEAGE, FIRST + version))


def test_prompts_go_round_robin_to_serving_rollouts_that_want_some() -> None:
    prompts = ledger()
    prompts.add_credit(A, 2)
    prompts.add_credit(B, 9)
    order = [(member, lease.prompt) for member, lease in prompts.dispatch([A, B], 0)]
    assert order == [(A, 0), (B, 1), (A, 2), (B, 3), (B, 4), (B, 5)]
    assert prompts.dispatch([A, B], 0) == [], "six are running, no more are allowed"


def test_nothing_is_leased_before_the_first_version() -> None:
    prompts = PromptLedger(
        source=lambda index: Prompt((index,)),
        group_size=2,
        batch=4,
        max_concurrent=6,
        max_staleness=1,
        lease_seconds=60,
    )
    assert not leases(prompts, A, 1)
    assert prompts.take_batch(FIRST) is None


def test_prompts_that_the_source_leaves_out_are_counted_and_nothing_else() -> None:
    def source(number: int) -> Prompt | None:
        return None if number % 3 == 1 else Prompt((number,), truncated=number == 2)

    prompts = ledger(source=source)
    given = leases(prompts, A, 4)
    assert [lease.prompt for lease in given] == [0, 2, 3, 5]
    assert (prompts.dispatched, prompts.skipped, prompts.truncated) == (4, 2, 1)
    assert balanced(prompts)
    counts = prompts.state().counts
    assert (counts.skipped, counts.truncated) == (2, 1)
    again = ledger(source=source, state=prompts.state())
    assert [lease.prompt for lease in leases(again, A, 6)] == [0, 2, 3, 5, 6, 8]
    assert again.skipped == 3, "the total of both"


def test_a_batch_in_order_does_not_wait_for_prompts_that_are_left_out() -> None:
    prompts = ledger(
        source=lambda number: None if number == 1 else Prompt((number,)), deterministic=True
    )
    for lease in leases(prompts, A, 4):
        assert prompts.complete(done(A, lease))
    assert [item.lease.prompt for item in taken(prompts, 0)] == [0, 2, 3, 4]


def test_a_lease_carries_the_row_for_the_reward_and_finished_samples_do_not() -> None:
    prompts = ledger(source=lambda number: Prompt((number,), {"answer": number}))
    first, second, *_ = leases(prompts, A, 4)
    assert (first.row, second.row) == ({"answer": 0}, {"answer": 1})
    assert prompts.complete(done(A, first))
    (saved,) = prompts.state().buffer
    assert saved.lease.row == {}, "a checkpoint needs no row any more"
    prompts.return_lease(second.lease_id, A)
    assert [lease.row["answer"] for lease in leases(prompts, B, 1)] == [1]


def test_a_new_stream_begins_without_credit() -> None:
    prompts = ledger()
    prompts.add_credit(A, 2)
    prompts.reset_credit(A)
    prompts.add_credit(A, 1)
    assert len(prompts.dispatch([A], 0)) == 1


def test_admission_stops_when_a_batch_more_would_be_too_stale() -> None:
    prompts = ledger(max_staleness=0)
    given = leases(prompts, A, 100)
    assert len(given) == 4, "one batch of the first version"
    for lease in given:
        assert prompts.complete(done(A, lease))
    assert not leases(prompts, A, 100)
    assert len(taken(prompts, 0)) == 4
    publish(prompts, 1)
    assert len(leases(prompts, A, 100)) == 4


def test_a_version_for_every_other_batch_admits_two_batches_a_version() -> None:
    prompts = ledger(max_staleness=0, batches_per_version=2)
    for version in (0, 1):
        publish(prompts, version)
        for _ in range(2):
            for lease in leases(prompts, A, 4):
                assert prompts.complete(done(A, lease, version=version))
            assert len(taken(prompts, version)) == 4
        assert not leases(prompts, A, 4), "a third one would be of the next version"


def test_a_lost_rollouts_prompts_go_to_another_and_its_late_answer_is_a_duplicate() -> None:
    prompts = ledger()
    old = leases(prompts, A, 2)
    prompts.rollout_lost(A)
    new = leases(prompts, B, 2)
    assert [lease.prompt for lease in new] == [lease.prompt for lease in old]
    assert not prompts.complete(done(A, old[0]))
    assert not prompts.complete(done(A, new[0])), "held by another member"
    assert prompts.complete(done(B, new[0]))
    assert not prompts.complete(done(B, new[0])), "a doubled completion"
    assert (prompts.requeued, prompts.duplicates) == (2, 3)
    assert balanced(prompts)


def test_the_oldest_of_the_requeued_goes_first() -> None:
    prompts = ledger()
    first, second, third = leases(prompts, A, 3)
    for lease in (third, first, second):
        prompts.return_lease(lease.lease_id, A)
    assert [lease.prompt for lease in leases(prompts, B, 4)] == [0, 1, 2, 3]


def test_stale_samples_and_those_of_a_former_trainer_are_rejected_with_a_reason() -> None:
    prompts = ledger(max_staleness=1)
    given = leases(prompts, A, 6)
    prompts.complete(done(A, given[0], version=3, lineage=Lineage(0, 1)))
    prompts.complete(done(A, given[1], version=1))
    for lease in given[2:]:
        prompts.complete(done(A, lease, version=2))
    batch = taken(prompts, 3)
    assert [(item.lease, item.age) for item in batch] == [(lease, 1) for lease in given[2:]]
    assert prompts.rejected == {RejectionReason.ABANDONED_LINEAGE: 1, RejectionReason.STALE: 1}
    assert balanced(prompts)


def test_a_batch_takes_the_oldest_versions_first() -> None:
    prompts = ledger()
    given = leases(prompts, A, 6)
    for lease, version in zip(given, (1, 0, 1, 0, 0, 0), strict=True):
        prompts.complete(done(A, lease, version=version))
    assert [item.lease.prompt for item in taken(prompts, 1)] == [1, 3, 4, 5]


def test_a_lease_past_its_deadline_is_requeued_and_reports_put_it_off() -> None:
    prompts = ledger()
    (lease,) = leases(prompts, A, 1)
    assert prompts.expire(59) == []
    assert prompts.report_progress(progress_of(lease), A, 59), "even one without tokens"
    assert prompts.next_deadline() == 119
    assert prompts.expire(118) == []
    assert prompts.expire(119) == [(A, lease.lease_id)]
    assert prompts.requeued == 1
    assert not prompts.report_progress(progress_of(lease), A, 120), "too late"


def walk(prompts: PromptLedger, dice: random.Random, steps: int) -> PromptLedger:
    """Whatever may happen to a ledger; each restart goes on with another one."""
    now, version, lives = 0.0, 0, 1
    out = prompts.dispatch([], now)

    def some() -> tuple[MemberId, PromptLease]:
        """Mostly a current lease; also of former holders and incarnations, and of others."""
        holder, lease = dice.choice(out[-8:] if dice.random() < 0.95 else out)
        return (holder if dice.random() < 0.9 else dice.choice([A, B])), lease

    for _ in range(steps):
        now += dice.random()
        event = dice.choice(
            ["want", "dispatch", "complete", "complete", "report", "report", "take"] * 8
            + ["forget", "expire", "return", "restart"]
        )
        member = dice.choice([A, B])
        lineage = Lineage(1, lives)
        if event == "want":
            prompts.add_credit(member, dice.randint(0, 6))
        elif event == "dispatch":
            out += prompts.dispatch([A, B], now)
        elif event == "complete" and out:
            holder, lease = some()
            sampled_by = version - dice.choice([0, 0, 0, 1, 2])
            prompts.complete(done(holder, lease, version=sampled_by, lineage=lineage))
        elif event == "forget":
            prompts.rollout_lost(member)
        elif event == "expire":
            prompts.expire(now)
        elif event == "return" and out:
            holder, lease = some()
            prompts.return_lease(lease.lease_id, holder)
        elif event == "report" and out:
            holder, lease = some()
            reported = [response(*range(dice.randint(0, 3))) for _ in range(2)]
            oldest = Version(dice.choice([lineage, Lineage(1, lives - 1)]), FIRST + version)
            since = dice.randint(0, 2)
            prompts.report_progress(
                progress_of(lease, *reported, since=since, version=oldest), holder, now
            )
        elif event == "take" and prompts.take_batch(FIRST + version):
            version += 1
            prompts.published(Version(lineage, FIRST + version))
        elif event == "restart":
            state, lives = prompts.state(), lives + 1
            prompts = ledger(state=state, first=Version(Lineage(1, lives), FIRST + version))
        assert balanced(prompts)
        assert prompts.running <= 6
        assert prompts.buffered + prompts.running <= 8, "two batches at staleness 1"
    return prompts


@pytest.mark.parametrize("seed", range(40))
def test_the_counters_add_up_whatever_happens(seed: int) -> None:
    prompts = walk(ledger(), random.Random(seed), 600)
    assert prompts.dispatched > 20


def test_these_random_walks_reach_every_outcome() -> None:
    walks = [walk(ledger(), random.Random(seed), 600) for seed in range(5)]
    for outcome in ("accepted", "requeued", "duplicates", "resumed_tokens"):
        assert sum(getattr(prompts, outcome) for prompts in walks) > 10, outcome
    assert sum(prompts.rejected[RejectionReason.STALE] for prompts in walks) > 5


def test_a_rollout_that_was_lost_gets_no_lease_until_it_sends_credit_again() -> None:
    prompts = ledger()
    prompts.add_credit(A, 2)
    prompts.rollout_lost(A)
    assert prompts.dispatch([A], 0) == []
    prompts.add_credit(A, 1)
    assert len(prompts.dispatch([A], 0)) == 1
