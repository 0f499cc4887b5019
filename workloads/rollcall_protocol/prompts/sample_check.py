"""What a rollout's samples must be before anything is computed with them.

The bounds follow from the job and from the lease. A reward that is not a number, or a token outside
the model's vocabulary, would otherwise end the trainer; a bug in a user's reward can send one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample

MAX_REWARD = 1e6  # its square is far below what float32 holds
MAX_LOGPROB = 0.01  # of a probability of 1, with the rounding of an inference engine


class SampleFault(StrEnum):
    """What is wrong with samples."""

    GROUP_SIZE = "group_size"
    LENGTH = "length"
    TOKEN = "token"  # noqa: S105 - no secret
    LOGPROB = "logprob"
    VERSION = "version"
    REWARD = "reward"


@dataclass(frozen=True, slots=True)
class BadSamples:
    """Samples that are not counted; `problem` names the sample and the value."""

    fault: SampleFault
    problem: str


@dataclass(frozen=True, slots=True)
class SampleBounds:
    """`vocabulary`: tokens are below it. `positions`: those of prompt and response, if bounded."""

    vocabulary: int
    positions: int | None = None

    def check(
        self, completion: Completion, lease: PromptLease, *, newest: Version
    ) -> BadSamples | None:
        """The first problem of a completion of `lease`; None if its samples can be trained on.

        `newest` is the newest version that rollouts may serve.
        """
        count = len(completion.samples)
        if count != lease.group_size:
            problem = f"{count} samples were sent, and {lease.group_size} asked for"
            return BadSamples(SampleFault.GROUP_SIZE, problem)
        if not 0 <= completion.version.number <= newest.number:
            return BadSamples(SampleFault.VERSION, _version(completion.version.number, newest))
        for number, sample in enumerate(completion.samples):
            for fault, problem in self._problems(sample, len(lease.tokens), newest):
                return BadSamples(fault, f"sample {number}: {problem}")
        return None

    def _problems(
        self, sample: Sample, prompt: int, newest: Version
    ) -> Iterator[tuple[SampleFault, str]]:
        tokens, logprobs, versions = map(len, (sample.tokens, sample.logprobs, sample.versions))
        if not tokens == logprobs == versions:
            problem = f"{tokens} tokens, {logprobs} log-probabilities and {versions} versions"
            yield SampleFault.LENGTH, problem
        if self.positions is not None and prompt + tokens > self.positions:
            problem = f"{prompt} + {tokens} tokens, and the model has {self.positions} positions"
            yield SampleFault.LENGTH, problem
        for token in sample.tokens:
            if not 0 <= token < self.vocabulary:
                yield SampleFault.TOKEN, f"token {token} is none of {self.vocabulary}"
        for logprob in sample.logprobs:
            if not -math.inf < logprob <= MAX_LOGPROB:
                yield SampleFault.LOGPROB, f"log-probability {logprob}"
        for version in sample.versions:
            if not 0 <= version <= newest.number:
                yield SampleFault.VERSION, _version(version, newest)
        if not abs(sample.reward) <= MAX_REWARD:
            yield SampleFault.REWARD, f"reward {sample.reward} is not within {MAX_REWARD:g}"


def _version(number: int, newest: Version) -> str:
    return f"version {number}, and the newest is {newest.number}"
