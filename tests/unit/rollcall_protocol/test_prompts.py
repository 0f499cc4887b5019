"""The ledger: every dispatched prompt has one outcome, and admission bounds staleness."""

import random

import pytest

from rollcall_protocol.ids import Lineage, MemberId, Version
from rollcall_protocol.messages import Completion, Lease
from rollcall_protocol.prompts import Answered, LedgerState, PromptLedger, Rejection

LINEAGE = Lineage(1, 1)
A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")


def ledger(
    *, state: LedgerState | None = None, max_staleness: int = 1, batches_per_version: int = 1
) -> PromptLedger:
    return PromptLedger(
        source=lambda index: (index,), lineage=LINEAGE, group_size=2, batch=4, max_concurrent=6,
        max_staleness=max_staleness, lease_seconds=60, state=state,
        batches_per_version=batches_per_version,
    )  # fmt: skip


def done(member: MemberId, lease: Lease, *, version: int = 0, epoch: int = 1) -> Completion:
    return Completion("job", member, lease.lease, Version(Lineage(epoch, 1), version), ())


def taken(prompts: PromptLedger, number: int) -> list[Answered]:
    batch = prompts.take_batch(number)
    assert batch is not None
    return batch


def balanced(prompts: PromptLedger) -> bool:
    outcomes = prompts.accepted + prompts.rejected.total() + prompts.requeued
    return prompts.dispatched == outcomes + prompts.in_flight


def test_prompts_go_round_robin_to_serving_rollouts_that_want_some() -> None:
    prompts = ledger()
    prompts.want(A, 2)
    prompts.want(B, 9)
    order = [(member, lease.prompt) for member, lease in prompts.dispatch([A, B], 0)]
    assert order == [(A, 0), (B, 1), (A, 2), (B, 3), (B, 4), (B, 5)]
    assert prompts.dispatch([A, B], 0) == [], "six are running, no more are allowed"


def test_admission_stops_when_a_batch_more_would_be_too_stale() -> None:
    prompts = ledger(max_staleness=0)
    prompts.want(A, 100)
    leases = prompts.dispatch([A], 0)
    assert len(leases) == 4, "one batch of version 0"
    for _, lease in leases:
        assert prompts.complete(done(A, lease))
    assert prompts.dispatch([A], 0) == []
    assert len(taken(prompts, 0)) == 4
    prompts.version = 1
    assert len(prompts.dispatch([A], 0)) == 4


def test_a_version_for_every_other_batch_admits_two_batches_a_version() -> None:
    prompts = ledger(max_staleness=0, batches_per_version=2)
    for version in (0, 1):
        prompts.version = version
        for _ in range(2):
            prompts.want(A, 4)
            for _, lease in prompts.dispatch([A], 0):
                assert prompts.complete(done(A, lease, version=version))
            assert len(taken(prompts, version)) == 4
        prompts.want(A, 4)
        assert prompts.dispatch([A], 0) == [], "a third one would be of the next version"


def test_a_lost_rollouts_prompts_go_to_another_and_its_late_answer_is_a_duplicate() -> None:
    prompts = ledger()
    prompts.want(A, 2)
    old = prompts.dispatch([A], 0)
    prompts.forget(A)
    prompts.want(B, 2)
    new = prompts.dispatch([B], 0)
    assert [lease.prompt for _, lease in new] == [lease.prompt for _, lease in old]
    assert not prompts.complete(done(A, old[0][1]))
    assert not prompts.complete(done(A, new[0][1])), "held by another member"
    assert prompts.complete(done(B, new[0][1]))
    assert not prompts.complete(done(B, new[0][1])), "told twice"
    assert (prompts.requeued, prompts.duplicates) == (2, 3)
    assert balanced(prompts)


def test_stale_samples_and_those_of_a_former_trainer_are_rejected_with_a_reason() -> None:
    prompts = ledger(max_staleness=1)
    prompts.want(A, 6)
    leases = [lease for _, lease in prompts.dispatch([A], 0)]
    prompts.complete(done(A, leases[0], version=3, epoch=0))
    prompts.complete(done(A, leases[1], version=1))
    for lease in leases[2:]:
        prompts.complete(done(A, lease, version=2))
    batch = taken(prompts, 3)
    assert [taken.completion.version.number for taken in batch] == [2, 2, 2, 2]
    assert [taken.lease for taken in batch] == leases[2:]
    assert prompts.rejected == {Rejection.ABANDONED_LINEAGE: 1, Rejection.STALE: 1}
    assert balanced(prompts)


def test_a_lease_past_its_deadline_is_requeued() -> None:
    prompts = ledger()
    prompts.want(A, 1)
    (member, lease), = prompts.dispatch([A], 0)  # fmt: skip
    assert prompts.expire(59) == []
    assert prompts.next_deadline() == 60
    assert prompts.expire(60) == [(member, lease.lease)]
    assert prompts.requeued == 1


def test_a_resumed_run_draws_again_what_was_under_way() -> None:
    prompts = ledger()
    prompts.want(A, 3)
    leases = [lease for _, lease in prompts.dispatch([A], 0)]
    prompts.complete(done(A, leases[1]))
    resumed = ledger(state=prompts.state())
    resumed.want(B, 4)
    assert [lease.prompt for _, lease in resumed.dispatch([B], 0)] == [1, 0, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_the_counters_add_up_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    prompts, out, now = ledger(), [], 0.0
    for _ in range(400):
        now += dice.random() * 5
        event = dice.choice(["want", "dispatch", "complete", "forget", "expire", "take", "return"])
        member = dice.choice([A, B])
        if event == "want":
            prompts.want(member, dice.randint(0, 3))
        elif event == "dispatch":
            out += prompts.dispatch([A, B], now)
        elif event == "complete" and out:
            holder, lease = dice.choice(out)
            prompts.complete(done(holder, lease, version=max(0, prompts.version - 1)))
        elif event == "forget":
            prompts.forget(member)
        elif event == "expire":
            prompts.expire(now)
        elif event == "return" and out:
            holder, lease = dice.choice(out)
            prompts.give_back(lease.lease, holder)
        elif event == "take" and prompts.take_batch(prompts.version):
            prompts.version += 1
        assert balanced(prompts)
    assert prompts.dispatched > 20
