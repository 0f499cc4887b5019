"""After a restart of the trainer: counters go on, finished samples count, tokens are kept."""

import json

from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import decode, encode
from rollcall_protocol.wire.messages import Completion
from rollcall_protocol.wire.partial_responses import PartialResponses
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
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

LATER = Version(Lineage(1, 2), 70)  # the trainer had gone on for long after its checkpoint


def restored(prompts: PromptLedger, *, first: Version = LATER) -> PromptLedger:
    """As from a checkpoint, in JSON."""
    text = json.dumps(encode(prompts.state()))
    return ledger(state=decode(LedgerState, json.loads(text)), first=first)


def before(*, buffered: int = 2) -> PromptLedger:
    """A batch of version 0 is being trained on, some samples wait, two prompts run."""
    prompts = ledger(max_concurrent=100)
    for lease in leases(prompts, A, 4):
        prompts.complete(done(A, lease))
    assert len(taken(prompts, 0)) == 4
    for lease in leases(prompts, A, buffered):
        prompts.complete(done(A, lease))
    running = leases(prompts, A, 2)
    prompts.report_progress(progress_of(running[0], response(3, 4), response(5)), A, 1)
    return prompts


def test_running_prompts_count_as_requeued_after_a_restore() -> None:
    old = before()
    new = restored(old)
    assert balanced(new)
    assert (new.dispatched, new.accepted, new.requeued) == (8, 4, 2)
    assert (new.running, new.buffered, new.cursor) == (0, 2, 8)
    assert (old.running, old.requeued) == (2, 0), "the old one goes on as it was"


def test_prompts_that_were_running_go_first_with_their_tokens() -> None:
    new = restored(before())
    first, second, third = leases(new, B, 3)
    assert [lease.prompt for lease in (first, second, third)] == [6, 7, 8]
    assert first.partial == PartialResponses(at(0), (response(3, 4), response(5)))
    assert second.partial is None
    assert new.complete(Completion("job", B, first.lease_id, at(0), ()))
    assert not new.rejected, "its oldest token is of a version that leads to the checkpoint"


def test_samples_that_waited_are_trained_on_whatever_the_numbers_say() -> None:
    new = restored(before())
    for lease in leases(new, B, 2):
        assert new.complete(Completion("job", B, lease.lease_id, LATER, ()))
    batch = new.take_batch(LATER.number)
    assert batch is not None
    found = [(item.lease.prompt, item.age) for item in batch]
    assert found == [(4, 1), (5, 1), (6, 0), (7, 0)], "60 lower in number, one version behind"
    assert balanced(new)


def test_they_grow_too_old_all_the_same() -> None:
    new = restored(before())
    assert new.take_batch(LATER.number + 1) is None
    assert new.rejected == {RejectionReason.STALE: 2}
    new.published(Version(LATER.lineage, LATER.number + 1))
    assert [lease.partial for lease in leases(new, B, 2)] == [None, None]
    assert balanced(new)


def test_they_are_older_still_if_the_weights_are_newer_than_the_checkpoint() -> None:
    new = ledger(state=before().state(), first=LATER, max_staleness=2)
    new.age_by(1)
    first, second = leases(new, B, 2)
    assert first.partial is not None
    for lease in (first, second):
        new.complete(Completion("job", B, lease.lease_id, LATER, ()))
    batch = new.take_batch(LATER.number)
    assert batch is not None
    assert [item.age for item in batch] == [2, 2, 0, 0]
    newer = restored(before())
    newer.age_by(40)
    assert newer.take_batch(LATER.number) is None
    assert newer.rejected == {RejectionReason.STALE: 2}
    assert leases(newer, B, 1)[0].partial is None


def test_ages_go_on_over_several_restarts() -> None:
    last = Version(Lineage(1, 3), 500)
    again = restored(restored(before()), first=last)
    batch = again.take_batch(last.number)
    assert batch is None
    assert again.buffered == 2, "no version came between: they are one behind as before"
    assert leases(again, B, 1)[0].partial is not None
    assert again.take_batch(last.number + 1) is None
    assert again.rejected == {RejectionReason.STALE: 2}


def test_a_completion_for_an_earlier_incarnation_is_a_duplicate() -> None:
    old = ledger()
    given = leases(old, A, 2)
    new = restored(old)
    for lease in given:
        assert not new.complete(done(A, lease))
    assert new.duplicates == 2


def test_admission_counts_what_waits_and_not_what_was_trained_on_before() -> None:
    new = restored(before())
    assert new.capacity == 8 - 2, "room for two batches at staleness 1"
    assert len(leases(new, B, 100)) == 6


def test_tokens_of_groups_of_another_size_are_dropped() -> None:
    new = ledger(state=before().state(), group_size=3)
    assert [lease.partial for lease in leases(new, B, 2)] == [None, None]


def test_a_state_without_counters_is_taken() -> None:
    new = ledger(state=decode(LedgerState, {"cursor": 9, "pending": [7, 3]}))
    assert [lease.prompt for lease in leases(new, B, 3)] == [3, 7, 9]
    assert balanced(new)
