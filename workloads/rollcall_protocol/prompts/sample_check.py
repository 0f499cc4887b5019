"""What a rollout's samples and tokens must be before anything is computed with them.

The bounds follow from the job and from the lease. A reward that is not a number, or a token outside
the model's vocabulary, would otherwise end the trainer; a faulty inference engine can send one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.prompts.reward_error_check import reward_errors_problem
from rollcall_protocol.wire.ids import MAX_VERSION_NUMBER, Version
from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response
from rollcall_protocol.wire.reward_errors import MAX_REWARD

MAX_LOGPROB = 0.01  # of a probability of 1, with the rounding of an inference engine
MAX_POSITIONS = 2**18  # of prompt and response, if the model has no bound of its own


class SampleFault(StrEnum):
    """What is wrong with samples."""

    GROUP_SIZE = "group_size"
    LENGTH = "length"
    TOKEN = "token"  # noqa: S105 - no secret
    LOGPROB = "logprob"
    VERSION = "version"
    REWARD = "reward"
    REWARD_ERROR = "reward_error"


@dataclass(frozen=True, slots=True)
class BadSamples:
    """Samples that are not counted; `problem` names the sample and the value."""

    fault: SampleFault
    problem: str


@dataclass(frozen=True, slots=True)
class SampleBounds:
    """`vocabulary`: tokens are below it. `positions`: those of prompt and response together."""

    vocabulary: int
    positions: int | None = None  # MAX_POSITIONS

    def check(
        self, completion: Completion, lease: PromptLease, *, newest: Version | None
    ) -> BadSamples | None:
        """The first problem of a completion of `lease`; None if its samples can be trained on.

        `newest` is the newest version that rollouts may serve, None if that is unknown.
        """
        count = len(completion.samples)
        if count != lease.group_size:
            wrong = f"{count} samples were sent, and {lease.group_size} asked for"
            return BadSamples(SampleFault.GROUP_SIZE, wrong)
        if not 0 <= completion.version.number <= _limit(newest):
            return BadSamples(SampleFault.VERSION, _version(completion.version.number, newest))
        if (problem := reward_errors_problem(completion)) is not None:
            return BadSamples(SampleFault.REWARD_ERROR, problem)
        for number, sample in enumerate(completion.samples):
            columns = sample.tokens, sample.logprobs, sample.versions
            for fault, problem in self._problems(*columns, newest, before=len(lease.tokens)):
                return BadSamples(fault, f"sample {number}: {problem}")
            if not abs(sample.reward) <= MAX_REWARD:
                problem = f"sample {number}: reward {sample.reward} is not within {MAX_REWARD:g}"
                return BadSamples(SampleFault.REWARD, problem)
        return None

    def check_report(
        self, report: PartialReport, lease: PromptLease, *, newest: Version
    ) -> BadSamples | None:
        """The first problem of a report about `lease`; None if another rollout can continue it."""
        starts = [len(lease.tokens) + at for at in report.since]
        return self._responses(report.responses, starts, lease, report.version, newest)

    def check_partial(self, partial: PartialResponses, lease: PromptLease) -> BadSamples | None:
        """The first problem of responses that came with `lease`; None if they can be continued.

        Which versions there are is not known to who receives a lease.
        """
        starts = [len(lease.tokens)] * len(partial.responses)
        return self._responses(partial.responses, starts, lease, partial.version, None)

    def _responses(
        self,
        responses: Sequence[Response],
        starts: Sequence[int],
        lease: PromptLease,
        oldest: Version | None,
        newest: Version | None,
    ) -> BadSamples | None:
        """`starts` are the positions of the first tokens."""
        count = len(responses)
        if not count:
            return None
        if count != lease.group_size:
            problem = f"{count} responses, and {lease.group_size} were asked for"
            return BadSamples(SampleFault.GROUP_SIZE, problem)
        if oldest is not None and not 0 <= oldest.number <= _limit(newest):
            return BadSamples(SampleFault.VERSION, _version(oldest.number, newest))
        for number, (response, start) in enumerate(zip(responses, starts, strict=True)):
            columns = response.tokens, response.logprobs, response.versions
            for fault, problem in self._problems(*columns, newest, before=start):
                return BadSamples(fault, f"response {number}: {problem}")
        return None

    def _problems(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        newest: Version | None,
        *,
        before: int,
    ) -> Iterator[tuple[SampleFault, str]]:
        """`before`: the number of positions before the first of `tokens`."""
        count = len(tokens)
        if not count == len(logprobs) == len(versions):
            problem = f"{count} tokens, {len(logprobs)} log-probabilities, {len(versions)} versions"
            yield SampleFault.LENGTH, problem
        positions = self.positions or MAX_POSITIONS
        if before + count > positions:
            problem = f"{before} + {count} tokens, and the model has {positions} positions"
            yield SampleFault.LENGTH, problem
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                yield SampleFault.TOKEN, f"token {token} is none of {self.vocabulary}"
        for logprob in logprobs:
            if not -math.inf < logprob <= MAX_LOGPROB:
                yield SampleFault.LOGPROB, f"log-probability {logprob}"
        limit = _limit(newest)
        for version in versions:
            if not 0 <= version <= limit:
                yield SampleFault.VERSION, _version(version, newest)


def _limit(newest: Version | None) -> int:
    return MAX_VERSION_NUMBER if newest is None else newest.number


def _version(number: int, newest: Version | None) -> str:
    return f"version {number}, and the newest is {newest.number if newest else 'unknown'}"
