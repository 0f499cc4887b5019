"""Only new tokens of a lease are reported; together the reports hold all tokens."""

import pytest

from rollcall_protocol.prompts.partial_builder import PartialBuilder
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import GenerationProgress, PromptLease
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response
from rollcall_runtime.rollout import lease_progress
from rollcall_runtime.rollout.lease_progress import LeaseProgress, LeaseProgressReporter
from tests.unit.rollcall_runtime.rollout.fake_engine import lease

V0 = Version(Lineage(1, 1), 0)


def generation(count: int, *, finished: bool = False) -> Response:
    """Of tokens 0, 1, 2 and so on."""
    tokens = tuple(range(count))
    return Response(tokens, tuple(-t / 8 for t in tokens), (0,) * count, finished)


def progress_of(
    *counts: int, of: PromptLease | None = None, finished: bool = False
) -> LeaseProgress:
    group = [generation(count, finished=finished) for count in counts]
    return LeaseProgress(of or lease(0), V0, group)


class Bench:
    def __init__(self) -> None:
        self.sent: list[GenerationProgress] = []
        self.reporter = LeaseProgressReporter(self.sent.append)

    def report(self, *lease_progress: LeaseProgress) -> list[PartialReport]:
        """What is sent of these."""
        self.sent.clear()
        self.reporter.report(lease_progress)
        return [report for progress in self.sent for report in progress.reports]


def test_only_new_tokens_are_reported() -> None:
    bench = Bench()
    (first,) = bench.report(progress_of(2, 1))
    assert first.since == (0, 0)
    (second,) = bench.report(progress_of(3, 1))
    assert second.since == (2, 1)
    assert [response.tokens for response in second.responses] == [(2,), ()]
    draft = PartialBuilder(2)
    assert draft.take(first)
    assert draft.take(second)
    partial = draft.partial()
    assert partial is not None
    assert [response.tokens for response in partial.responses] == [(0, 1, 2), (0,)]


def test_what_came_with_the_lease_is_known_already() -> None:
    begun = PartialResponses(V0, (Response((0, 1), (0.0, -0.125), (0, 0)), Response((), (), ())))
    (report,) = Bench().report(progress_of(3, 1, of=lease(0, begun=begun)))
    assert report.since == (2, 0)


def test_on_a_new_stream_all_tokens_are_reported_again() -> None:
    bench = Bench()
    bench.report(progress_of(2, 1))
    bench.reporter.reset()
    (report,) = bench.report(progress_of(3, 1))
    assert report.since == (0, 0)


def test_a_lease_without_tokens_is_reported_to_keep_it() -> None:
    bench = Bench()
    assert bench.report(LeaseProgress(lease(3))) == [PartialReport(lease(3).lease_id)]
    assert not bench.report()
    assert not bench.sent


def test_many_tokens_are_reported_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_progress, "MAX_TOKENS", 5)
    bench = Bench()
    reports = bench.report(progress_of(7, 4, finished=True), progress_of(2, 2, of=lease(1)))
    assert len(bench.sent) == 3
    draft = PartialBuilder(2)
    for report in reports[:-1]:
        assert sum(len(response.tokens) for response in report.responses) <= 5
        assert draft.take(report)
    partial = draft.partial()
    assert partial is not None
    assert [response.tokens for response in partial.responses] == [
        generation(7).tokens,
        generation(4).tokens,
    ]
    assert all(response.finished for response in partial.responses)
    assert not reports[0].responses[0].finished, "only with its last token"
