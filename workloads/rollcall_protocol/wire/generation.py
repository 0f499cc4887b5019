"""A response that an inference engine samples: what is asked for, and its tokens as they come.

The front sends both over the network to and from rollouts; within a rollout the agent exchanges
them with its engine.
"""

from dataclasses import dataclass

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.partial_responses import Response

_NOTHING = Response()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One response to `prompt`, token ids; `begun` is continued if it has tokens.

    `seed` and the number of a token choose its random numbers, whatever else is sampled with it.
    Without `sampling.max_tokens` the engine's own bound holds, for all tokens of the response.
    """

    prompt: tuple[int, ...]
    sampling: SamplingConfig
    seed: int
    begun: Response = _NOTHING


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The next tokens of a response, natural logarithms of their probabilities, their versions.

    `finished`: the response ends with them. `all_versions`, in the last piece: the versions of all
    tokens of the request, if those of earlier pieces were not certain. ValueError if the three
    tuples differ in length.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finished: bool = False
    all_versions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError("tokens, logprobs and versions differ in length")

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
