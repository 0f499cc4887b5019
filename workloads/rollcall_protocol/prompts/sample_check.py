"""What a rollout's samples and tokens must be before anything is computed with them.

The bounds follow from the job and from the lease. A reward that is not a number, or a token outside
the model's vocabulary, would otherwise end the trainer; a faulty inference engine can send one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.generation import NewTokens
from rollcall_protocol.wire.ids import MAX_VERSION_NUMBER, Version
from rollcall_protocol.wire.messages import ALONE, Completion, PromptLease, Sample
from rollcall_protocol.wire.partial_responses import (
    NOT_SAMPLED,
    PartialReport,
    PartialResponses,
    Response,
)
from rollcall_protocol.wire.reward_errors import MAX_REWARD, MAX_TEXT, RewardError

MAX_LOGPROB = 0.01  # of a probability of 1, with the rounding of an inference engine
MAX_POSITIONS = 2**18  # of prompt and response, if the model has no bound of its own
MAX_REWARD_PARTS = 64
MAX_SECONDS = 1e8  # that a response takes
_LONGEST_FILE = 10**7  # lines


class SampleFault(StrEnum):
    """What is wrong with samples."""

    GROUP_SIZE = "group_size"
    LENGTH = "length"
    TOKEN = "token"  # noqa: S105 - no secret
    LOGPROB = "logprob"
    VERSION = "version"
    REWARD = "reward"
    REWARD_ERROR = "reward_error"
    TRAJECTORY = "trajectory"


@dataclass(frozen=True, slots=True)
class BadSamples:
    """Samples that are not counted; `problem` names the sample and the value."""

    fault: SampleFault
    problem: str


@dataclass(frozen=True, slots=True)
class SampleBounds:
    """`vocabulary`: tokens are below it. `positions`: those of prompt and response together.

    `given_tokens`: in this job an environment may give tokens between those that are sampled.
    """

    vocabulary: int
    positions: int | None = None  # MAX_POSITIONS
    given_tokens: bool = False

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
            bad = self.check_sample(sample, before=len(lease.tokens), newest=newest)
            if bad is not None:
                return BadSamples(bad.fault, f"sample {number}: {bad.problem}")
            if not (ALONE <= sample.trajectory < (count if self.given_tokens else 0)):
                problem = f"sample {number}: it is a part of trajectory {sample.trajectory}"
                return BadSamples(SampleFault.TRAJECTORY, problem)
        return None

    def check_sample(
        self, sample: Sample, *, before: int, newest: Version | None
    ) -> BadSamples | None:
        """The first problem of a sample behind `before` tokens of its prompt, its reward included.

        `newest` as in `check`.
        """
        columns = sample.tokens, sample.logprobs, sample.versions
        for fault, problem in self._problems(*columns, newest, before=before):
            return BadSamples(fault, problem)
        if not abs(sample.reward) <= MAX_REWARD:
            problem = f"reward {sample.reward} is not within {MAX_REWARD:g}"
            return BadSamples(SampleFault.REWARD, problem)
        return _bad_figures(sample)

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

    def check_request(self, prompt: Sequence[int], begun: Response) -> BadSamples | None:
        """The first problem of a prompt and the response begun; None if it can be sampled."""
        if not prompt:
            return BadSamples(SampleFault.LENGTH, "the prompt is empty")
        for token in prompt:
            if not 0 <= token < self.vocabulary:
                problem = f"the prompt's token {token} is none of {self.vocabulary}"
                return BadSamples(SampleFault.TOKEN, problem)
        positions = self.positions or MAX_POSITIONS
        if len(prompt) > positions:
            problem = f"the prompt has {len(prompt)} tokens, of {positions} that fit: shorten it"
            return BadSamples(SampleFault.LENGTH, problem)
        columns = begun.tokens, begun.logprobs, begun.versions
        for fault, problem in self._problems(*columns, None, before=len(prompt)):
            return BadSamples(fault, problem)
        return None

    def check_new(self, new: NewTokens, *, before: int, top: int = 0) -> BadSamples | None:
        """The first problem of tokens behind `before` others; None if a model may sample them.

        Of each token at most `top` likely ones were asked for.
        """
        columns = new.tokens, new.logprobs, new.versions
        for fault, problem in self._problems(*columns, None, before=before):
            return BadSamples(fault, problem)
        for version in new.all_versions:
            if not 0 <= version <= MAX_VERSION_NUMBER:
                return BadSamples(SampleFault.VERSION, _version(version, None))
        if len(new.all_versions) > before + len(new.tokens):
            problem = f"{len(new.all_versions)} versions, and {before} + {len(new.tokens)} tokens"
            return BadSamples(SampleFault.LENGTH, problem)
        return self._bad_top(new, top)

    def _bad_top(self, new: NewTokens, most: int) -> BadSamples | None:
        if bool(most) != bool(new.top) and new.tokens:
            problem = f"{most} likely tokens were asked for, and {len(new.top)} tokens have some"
            return BadSamples(SampleFault.LENGTH, problem)
        for pairs in new.top:
            if len(pairs) > most:
                problem = f"{len(pairs)} likely tokens, and {most} were asked for"
                return BadSamples(SampleFault.LENGTH, problem)
            tokens, logprobs = [token for token, _ in pairs], [value for _, value in pairs]
            versions = [0] * len(pairs)
            for fault, problem in self._problems(tokens, logprobs, versions, None, before=0):
                return BadSamples(fault, f"likely tokens: {problem}")
        return None

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
        lowest, limit = NOT_SAMPLED if self.given_tokens else 0, _limit(newest)
        for version in versions:
            if not lowest <= version <= limit:
                yield SampleFault.VERSION, _version(version, newest)


def _bad_figures(sample: Sample) -> BadSamples | None:
    """Of what people look at alone."""
    if len(sample.parts) > MAX_REWARD_PARTS:
        problem = f"{len(sample.parts)} parts of a reward; at most {MAX_REWARD_PARTS} are there"
        return BadSamples(SampleFault.REWARD, problem)
    for number in sample.parts:
        if not abs(number) <= MAX_REWARD:
            problem = f"part {number} of a reward is not within {MAX_REWARD:g}"
            return BadSamples(SampleFault.REWARD, problem)
    if not 0 <= sample.seconds <= MAX_SECONDS:
        return BadSamples(SampleFault.LENGTH, f"{sample.seconds} seconds")
    return None


def _limit(newest: Version | None) -> int:
    return MAX_VERSION_NUMBER if newest is None else newest.number


def _version(number: int, newest: Version | None) -> str:
    return f"version {number}, and the newest is {newest.number if newest else 'unknown'}"


def reward_errors_problem(completion: Completion) -> str | None:
    """The first thing that is wrong with the reward errors of a completion; None if nothing is.

    At most one error for each sample, in the order of the samples, with texts of bounded length.
    """
    previous = -1
    for error in completion.reward_errors:
        if not previous < error.sample < len(completion.samples):
            return f"a reward error is about sample {error.sample} after one about {previous}"
        if not all(_is_bounded(text) for text in (error.value, error.file)):
            return f"the reward error of sample {error.sample} has a text that cannot be shown"
        if not _is_line(error):
            return f"the reward error of sample {error.sample} names a line that cannot be"
        previous = error.sample
    return None


def _is_bounded(text: str) -> bool:
    return len(text) <= MAX_TEXT and text.isprintable()


def _is_line(error: RewardError) -> bool:
    return 0 <= error.line <= _LONGEST_FILE
