"""Samples that are not finished: what travels when a prompt goes on elsewhere.

A rollout reports only what is new of each response, from a cursor on: at a thousand tokens each,
a hundred prompts of sixteen responses are some 50 MB as text, too much to send every second. The
stream keeps the order, so a gap can only come from a stream that broke; its successor begins at 0.
"""

from dataclasses import dataclass, field

from rollcall_protocol.ids import Version


@dataclass(frozen=True, slots=True)
class Response:
    """Tokens of one response, each with its behaviour log-probability and its weight version.

    ValueError if the three are not of one length.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finished: bool = False

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")


@dataclass(frozen=True, slots=True)
class Partial:
    """All that there is of a group of responses; `version` is the oldest token's."""

    version: Version
    responses: tuple[Response, ...]

    @property
    def tokens(self) -> int:
        """How many there are in all."""
        return sum(len(response.tokens) for response in self.responses)


@dataclass(frozen=True, slots=True)
class Report:
    """What is new of a lease: `responses[i]` has the tokens from number `since[i]` on.

    `version` is the oldest token's of all so far, also of those told before. Without responses it
    says no more than that the lease is worked on. ValueError if the lists do not fit together.
    """

    lease: str
    version: Version | None = None
    since: tuple[int, ...] = ()
    responses: tuple[Response, ...] = ()

    def __post_init__(self) -> None:
        if len(self.since) != len(self.responses) or any(at < 0 for at in self.since):
            raise ValueError("since must have a number, at least 0, for each response")


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


class Draft:
    """A group of responses as it grows by reports; begins with what came from elsewhere."""

    def __init__(self, size: int, begun: Partial | None = None) -> None:
        self._version = begun.version if begun else None
        self._rows = [_Row() for _ in range(size)]
        if begun is not None:
            for row, response in zip(self._rows, begun.responses, strict=True):
                row.take(0, response)

    def take(self, report: Report) -> bool:
        """Add what is new; False, and nothing changes, if something before it is missing."""
        rows = self._rows
        if report.version is None or len(report.since) != len(rows):
            return False
        if any(at > len(row.tokens) for at, row in zip(report.since, rows, strict=True)):
            return False
        for row, at, response in zip(rows, report.since, report.responses, strict=True):
            row.take(at, response)
        self._version = report.version
        return True

    def partial(self) -> Partial | None:
        """All that there is; None without a token."""
        if self._version is None or not any(row.tokens for row in self._rows):
            return None
        return Partial(self._version, tuple(row.frozen() for row in self._rows))
