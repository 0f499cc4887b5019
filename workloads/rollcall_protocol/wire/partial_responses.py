"""Unfinished samples: their tokens are reported, so that another rollout can continue them.

A rollout reports only the new tokens of each response, from a cursor on: at a thousand tokens each,
a hundred prompts of sixteen responses are some 50 MB as text, too much to send every second. The
stream keeps the order, so a gap can only come from a stream that broke; its successor begins at 0.
"""

from dataclasses import dataclass

from rollcall_protocol.wire.ids import Version

NOT_SAMPLED = -1
"""In the place of a weight version: an environment gave the token, and it is not trained on."""


@dataclass(frozen=True, slots=True)
class Response:
    """Tokens of one response so far, each with its log-probability and its weight version.

    Log-probabilities are natural logarithms under the policy that sampled the token; a token of
    version NOT_SAMPLED has 0. A response that is not `finished` was cut short by a pause or a
    deadline and can be continued. ValueError if the three tuples differ in length.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finished: bool = False

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")


@dataclass(frozen=True, slots=True)
class PartialResponses:
    """The tokens so far of a group of responses; `version` is the oldest token's."""

    version: Version
    responses: tuple[Response, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens of all responses."""
        return sum(len(response.tokens) for response in self.responses)


@dataclass(frozen=True, slots=True)
class PartialReport:
    """New tokens of a lease: `responses[i]` has those from number `since[i]` on.

    `version` is that of the oldest token so far, also of those reported before. A report without
    responses only renews the lease. ValueError if the lists differ in length.
    """

    lease_id: str
    version: Version | None = None
    since: tuple[int, ...] = ()
    responses: tuple[Response, ...] = ()

    def __post_init__(self) -> None:
        if len(self.since) != len(self.responses) or any(at < 0 for at in self.since):
            raise ValueError("since must have a number, at least 0, for each response")
