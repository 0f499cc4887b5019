"""A group of responses put together from the reports of the rollout that generates them."""

from dataclasses import dataclass, field

from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response


@dataclass(slots=True)
class _Row:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finished: bool = False

    def take(self, since: int, new: Response) -> None:
        self.tokens[since:] = new.tokens
        self.logprobs[since:] = new.logprobs
        self.versions[since:] = new.versions
        self.finished = new.finished

    def frozen(self) -> Response:
        return Response(
            tuple(self.tokens), tuple(self.logprobs), tuple(self.versions), self.finished
        )


class PartialBuilder:
    """A group of responses that grows by reports, from the `begun` ones of an earlier lease on."""

    def __init__(self, size: int, begun: PartialResponses | None = None) -> None:
        self._version = begun.version if begun else None
        self._rows = [_Row() for _ in range(size)]
        if begun is not None:
            for row, response in zip(self._rows, begun.responses, strict=True):
                row.take(0, response)

    def take(self, report: PartialReport) -> bool:
        """Add the new tokens; False, and nothing changes, if tokens before them are missing."""
        rows = self._rows
        if report.version is None or len(report.since) != len(rows):
            return False
        if any(at > len(row.tokens) for at, row in zip(report.since, rows, strict=True)):
            return False
        for row, at, response in zip(rows, report.since, report.responses, strict=True):
            row.take(at, response)
        self._version = report.version
        return True

    def partial(self) -> PartialResponses | None:
        """The tokens so far; None without one."""
        if self._version is None or not any(row.tokens for row in self._rows):
            return None
        return PartialResponses(self._version, tuple(row.frozen() for row in self._rows))
