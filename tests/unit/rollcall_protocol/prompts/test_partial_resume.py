"""A prompt whose lease is lost continues with the tokens that its rollout had reported."""

from typing import Any

import pytest

from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.ids import Lineage
from rollcall_protocol.wire.messages import (
    Completion,
    GenerationProgress,
    PromptLease,
    dumps,
    loads,
)
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response
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

WHOLE = (response(3, 4, 5), response(6, finished=True))


def begun(prompts: PromptLedger) -> PromptLease:
    """A lease of A with tokens from two reports."""
    (lease,) = leases(prompts, A, 1)
    assert prompts.report_progress(progress_of(lease, response(3, 4), response()), A, 1)
    new = (response(5), response(6, finished=True))
    assert prompts.report_progress(PartialReport(lease.lease_id, at(0), (2, 0), new), A, 2)
    return lease


@pytest.mark.parametrize("how", ["holder lost", "returned", "expired"])
def test_the_next_lease_carries_all_reported_tokens(how: str) -> None:
    prompts = ledger()
    lease = begun(prompts)
    if how == "holder lost":
        prompts.rollout_lost(A)
    elif how == "returned":
        prompts.return_lease(lease.lease_id, A)
    else:
        prompts.expire(100)
    (moved,) = leases(prompts, B, 1)
    assert moved.prompt == lease.prompt
    assert moved.lease_id != lease.lease_id
    assert moved.partial == PartialResponses(at(0), WHOLE)
    assert prompts.resumed_tokens == 4
    assert balanced(prompts)


def test_resumed_tokens_are_resumed_again_without_a_new_report() -> None:
    prompts = ledger()
    begun(prompts)
    prompts.rollout_lost(A)
    leases(prompts, B, 1)
    prompts.rollout_lost(B)
    (again,) = leases(prompts, A, 1)
    assert again.partial == PartialResponses(at(0), WHOLE)


def test_a_report_with_a_gap_adds_nothing() -> None:
    prompts = ledger()
    lease = begun(prompts)
    assert prompts.report_progress(progress_of(lease, response(9), response(9), since=2), A, 3)
    assert prompts.report_progress(progress_of(lease, response(9)), A, 3), (
        "of one response, not of two"
    )
    prompts.rollout_lost(A)
    assert leases(prompts, B, 1)[0].partial == PartialResponses(at(0), WHOLE)


def test_a_report_from_the_beginning_replaces_earlier_ones() -> None:
    prompts = ledger()
    lease = begun(prompts)
    prompts.report_progress(progress_of(lease, response(3, 4), response(6)), A, 3)
    prompts.rollout_lost(A)
    (moved,) = leases(prompts, B, 1)
    assert moved.partial == PartialResponses(at(0), (response(3, 4), response(6)))


def test_a_report_for_a_lease_that_is_not_current_changes_nothing() -> None:
    prompts = ledger()
    lease = begun(prompts)
    prompts.rollout_lost(A)
    (moved,) = leases(prompts, B, 1)
    more = progress_of(lease, response(8), response(), since=1)
    assert not prompts.report_progress(more, A, 3)
    assert not prompts.report_progress(progress_of(moved, response(9), response()), A, 3), (
        "B holds it"
    )
    prompts.rollout_lost(B)
    assert leases(prompts, A, 1)[0].partial == PartialResponses(at(0), WHOLE)


def test_tokens_that_are_too_old_or_of_a_former_trainer_are_sampled_again() -> None:
    prompts = ledger(max_staleness=1)
    begun(prompts)
    prompts.rollout_lost(A)
    prompts.published(at(2))
    (second,) = leases(prompts, B, 1)
    assert second.partial is None
    former = progress_of(second, *WHOLE, version=at(2, Lineage(0, 1)))
    assert prompts.report_progress(former, B, 1)
    prompts.rollout_lost(B)
    assert leases(prompts, A, 1)[0].partial is None
    assert prompts.resumed_tokens == 0


@pytest.mark.parametrize("mode", [{"keep_partial": False}, {"deterministic": True}])
def test_where_nothing_is_kept_a_report_only_renews(mode: dict[str, Any]) -> None:
    prompts = ledger(**mode)
    begun(prompts)
    assert prompts.next_deadline() == 62
    prompts.rollout_lost(A)
    assert leases(prompts, B, 1)[0].partial is None
    assert not prompts.state().partials


def test_samples_are_as_old_as_their_oldest_token() -> None:
    prompts = ledger(max_staleness=1)
    begun(prompts)
    prompts.rollout_lost(A)
    prompts.published(at(1))
    (moved,) = leases(prompts, B, 1)
    assert moved.partial is not None
    assert prompts.complete(Completion("job", B, moved.lease_id, moved.partial.version, ()))
    for lease in leases(prompts, B, 4):
        prompts.complete(done(B, lease, version=1))
    batch = taken(prompts, 1)
    assert [(item.lease.prompt, item.age) for item in batch] == [(0, 1), (1, 0), (2, 0), (3, 0)]
    assert batch[0].lease.partial is None, "the samples have it all"
    assert prompts.take_batch(at(2).number) is None
    assert prompts.rejected == {}
    assert prompts.take_batch(at(3).number) is None
    assert prompts.rejected == {RejectionReason.STALE: 1}


def test_reports_cross_the_wire() -> None:
    news = Response((3, 4), (-0.125, -1.0), (7, 8))
    progress = GenerationProgress(
        (PartialReport("1.1.1", at(0), (0, 5), (news, news)), PartialReport("1.1.2"))
    )
    assert loads(dumps(progress), GenerationProgress) == progress
    lease = PromptLease("1.1.1", 0, (1, 2), 2, 3, partial=PartialResponses(at(0), (news, news)))
    assert loads(dumps(lease), PromptLease) == lease


def test_lists_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Response((3, 4), (-1.0,), (0, 0))
    for since in ((), (-1,)):
        with pytest.raises(ValueError, match="since must have a number"):
            PartialReport("1.1.1", at(0), since, (response(3),))
