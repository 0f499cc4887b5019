"""Reports new tokens of unfinished leases, so that another rollout could continue them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import GenerationProgress, PromptLease
from rollcall_protocol.wire.partial_responses import PartialReport, Response

MAX_TOKENS = 2**14  # in a message: about 0.5 MB, which the coordinator parses in 25 ms


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """The responses of a lease so far; `version` is that of the oldest token.

    Without responses to report, `group` is empty.
    """

    lease: PromptLease
    version: Version | None = None
    group: Sequence[Response] = ()


class LeaseProgressReporter:
    """Sends the tokens that are new since the last report, by a cursor for each response."""

    def __init__(self, send: Callable[[GenerationProgress], None]) -> None:
        self._send = send
        self._reported: dict[str, list[int]] = {}  # tokens of each response, by lease

    def reset(self) -> None:
        """Start again on a new stream: reports on the old one may not have arrived."""
        self._reported = {}

    def report(self, lease_progress: Iterable[LeaseProgress]) -> None:
        """Report all leases that this rollout holds; cursors of other leases are dropped."""
        reported, self._reported = self._reported, {}
        reports: list[PartialReport] = []
        tokens = 0
        for report in (
            new for progress in lease_progress for new in self._new_reports(progress, reported)
        ):
            more = sum(len(response.tokens) for response in report.responses)
            if reports and tokens + more > MAX_TOKENS:
                self._send(GenerationProgress(tuple(reports)))
                reports, tokens = [], 0
            reports.append(report)
            tokens += more
        if reports:
            self._send(GenerationProgress(tuple(reports)))

    def _new_reports(
        self, progress: LeaseProgress, reported: dict[str, list[int]]
    ) -> Iterator[PartialReport]:
        lease, group = progress.lease, progress.group
        if progress.version is None or not group:
            yield PartialReport(lease.lease_id)
            return
        begun = lease.partial.responses if lease.partial else (Response(),) * len(group)
        since = reported.get(lease.lease_id, [len(response.tokens) for response in begun])
        while True:
            new = list(_cut(group, since, MAX_TOKENS))
            yield PartialReport(lease.lease_id, progress.version, tuple(since), tuple(new))
            since = [at + len(response.tokens) for at, response in zip(since, new, strict=True)]
            if all(at >= len(g.tokens) for at, g in zip(since, group, strict=True)):
                break
        self._reported[lease.lease_id] = since


def _cut(group: Sequence[Response], since: Sequence[int], limit: int) -> Iterator[Response]:
    """The tokens of each response from `since` on, at most `limit` tokens in all."""
    for generation, at in zip(group, since, strict=True):
        end = min(len(generation.tokens), at + limit)
        limit -= end - at
        yield Response(
            generation.tokens[at:end],
            generation.logprobs[at:end],
            generation.versions[at:end],
            finished=generation.finished and end == len(generation.tokens),
        )
