"""What the library returns."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a publication.

    `version` counts publications of the job, over restarts of its trainer. `members`: the pods that
    serve it. `left_out`: pods that did not take part to the end, with the reason; one that lives on
    fetches the weights by itself. `seconds` from the call to its return.
    """

    version: int
    members: tuple[str, ...]
    left_out: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, slots=True)
class SampledResponse:
    """One response: token ids, each with the natural logarithm of its probability when it was
    sampled, and the version (`Outcome.version`) of the weights that sampled it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResponseGroup:
    """All responses to one prompt, token ids."""

    prompt: tuple[int, ...]
    samples: tuple[SampledResponse, ...]


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """A rollout `joined`, became `current` (serves the newest weights), or was `left out`.

    `time` is in Unix seconds. `cause` says why it was left out.
    """

    kind: str
    pod: str
    time: float
    version: int | None = None
    cause: str = ""
