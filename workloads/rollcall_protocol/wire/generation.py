"""A response that an inference engine samples: what is asked for, and its tokens as they come.

The front sends both over the network to and from rollouts; within a rollout the agent exchanges
them with its engine.
"""

from dataclasses import dataclass

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.partial_responses import Response

MAX_SCHEMA = 1 << 15  # characters
MAX_TOP_LOGPROBS = 20  # as OpenAI's API
_NOTHING = Response()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to `prompt`, token ids; `begun` is continued if it has tokens.

    `seed` and the number of a token choose its random numbers, whatever else is sampled with it.
    Without `sampling.max_tokens` the engine's own bound holds, for all tokens of the response.
    `json_schema`: the response is JSON of it, as far as it comes, and cannot be one that is begun;
    empty: any response. `top_logprobs`: how many of the likeliest tokens are wanted beside each
    one. ValueError beyond MAX_SCHEMA and MAX_TOP_LOGPROBS.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig
    seed: int
    begun: Response = _NOTHING
    json_schema: str = ""
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        if len(self.json_schema) > MAX_SCHEMA:
            raise ValueError(f"json_schema has more than {MAX_SCHEMA} characters")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}")


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The next tokens of a response, natural logarithms of their probabilities, their versions.

    `finished`: the response ends with them. `all_versions`, in the last piece: the versions of all
    tokens of the request, if those of earlier pieces were not certain. `top`, if it was asked for:
    of each token the likeliest ones in its place with their logarithms, the likeliest first.
    ValueError if the tuples differ in length.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finished: bool = False
    all_versions: tuple[int, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")
        if self.top and len(self.top) != len(self.tokens):
            raise ValueError("tokens and top differ in length")

    def after(self, begun: Response) -> Response:
        """`begun`, with these tokens behind its own."""
        tokens = (*begun.tokens, *self.tokens)
        versions = (*begun.versions, *self.versions)
        if self.all_versions:
            versions = (*versions[: len(tokens) - len(self.all_versions)], *self.all_versions)
        logprobs = (*begun.logprobs, *self.logprobs)
        return Response(tokens, logprobs, versions, finished=self.finished)


@dataclass(frozen=True, slots=True)
class GenerationLine:
    """One line of a rollout's answer to the front: `new` tokens, or why none come any more.

    `oldest` is the version of the oldest token that this rollout has sampled for the request.
    With an `error` the line is the last one; `final`: another rollout would say the same.
    """

    new: NewTokens | None = None
    oldest: Version | None = None
    error: str = ""
    final: bool = False
