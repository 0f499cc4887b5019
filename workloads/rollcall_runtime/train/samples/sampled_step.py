"""What a step has of the responses that are recorded, and the records that are made of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollcall_protocol.sample_record import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    SampleRecord,
    runs,
)
from rollcall_protocol.sampling_config import sampling_of
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_runtime.models.end_tokens import end_tokens
from rollcall_runtime.train.samples.token_text import TokenText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_protocol.job_config import JobConfig
    from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
    from rollcall_protocol.wire.messages import PromptLease, Sample
    from rollcall_runtime.models.model_source import ModelSource
    from rollcall_runtime.train.samples.token_figures import TokenFigures

_DIGITS = 6  # of an advantage
_MOST_WORD = 256  # characters of a token
_MOST_NAME = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SampledStep:
    """`groups` of a step that trained `version`, at `time` in seconds since 1970.

    `figures` of those rows of the step's batch that are recorded, by the row's number.
    """

    step: int
    version: int
    time: float
    groups: Sequence[CompletedPrompt]
    figures: Mapping[int, TokenFigures]


@dataclass(frozen=True, slots=True)
class _Group:
    """Responses to a prompt, its text and their mean reward."""

    lease: PromptLease
    samples: Sequence[Sample]
    prompt: str
    mean: float


class SampleDescriber:
    """Makes records of responses, as the job and its model say."""

    def __init__(self, job: JobConfig, model: ModelSource) -> None:
        self._text = TokenText(model.directory)
        self._sampling, self._eos = job.algorithm.sampling, end_tokens(model)
        self._parts = [part.name for part in job.reward_scoring.parts]

    def describe(self, sampled: SampledStep) -> list[SampleRecord]:
        """Records of the rows that have figures."""
        found, row = list[SampleRecord](), 0
        for group in sampled.groups:
            rows = range(row, row + len(group.completion.samples))
            row = rows.stop
            recorded = [each for each in rows if each in sampled.figures]
            if recorded:
                about = self._about(group)
                found += [
                    self._record(sampled, about, each - rows.start, sampled.figures[each])
                    for each in recorded
                ]
        return found

    def _about(self, group: CompletedPrompt) -> _Group:
        """What its responses share, found once."""
        samples = group.completion.samples
        return _Group(
            group.lease,
            samples,
            prompt=_middle_left_out("".join(self._text.pieces(group.lease.tokens))),
            mean=_short(statistics.fmean(each.reward for each in samples)),
        )

    def _record(
        self, sampled: SampledStep, group: _Group, number: int, figures: TokenFigures
    ) -> SampleRecord:
        lease, samples = group.lease, group.samples
        sample = samples[number]
        pieces = [piece[:_MOST_WORD] for piece in self._text.pieces(sample.tokens)]
        of_all = _aligned(figures.advantages, sample)
        mismatch = _aligned(figures.mismatch, sample)
        return SampleRecord(
            step=sampled.step,
            prompt=lease.prompt,
            sample=number,
            time=round(sampled.time, 3),
            reward=float(sample.reward),
            group_size=len(samples),
            group_mean=group.mean,
            parts={
                name[:_MOST_NAME]: _short(value)
                for name, value in zip(self._parts, sample.parts, strict=False)
            },
            prompt_text=group.prompt,
            tokens=tuple(_ends(pieces)),
            left_out=max(0, len(pieces) - MOST_TOKENS),
            advantages=tuple((_short(value), n) for value, n in runs(_ends(of_all))),
            mismatch=tuple(_ends(mismatch)),
            versions=runs(_ends(sample.versions)),
            trained_version=sampled.version,
            ended=self._why_ended(lease, sample),
            seconds=round(sample.seconds, 3),
        )

    def _why_ended(self, lease: PromptLease, sample: Sample) -> str:
        """What the rollout's engine does not say follows from the tokens."""
        if not sample.tokens:
            return "no token"
        if sample.versions[-1] == NOT_SAMPLED:
            return "environment"
        sampling, last = sampling_of(self._sampling, lease.row), sample.tokens[-1]
        if last in self._eos or last in sampling.stop_token_ids:
            return "end token"
        if sampling.stop:
            tail = "".join(self._text.pieces(sample.tokens[-2 * max(map(len, sampling.stop)) :]))
            if any(text in tail for text in sampling.stop):
                return "stop string"
        return "length"


def _aligned(values: Sequence[float | None], sample: Sample) -> list[float | None]:
    """A value for each token, 0 for those of an environment; empty if there are no values."""
    given = iter(values)
    if len(values) != sum(version != NOT_SAMPLED for version in sample.versions):
        return []
    return [0.0 if version == NOT_SAMPLED else next(given) for version in sample.versions]


def _ends(values: Sequence[T]) -> Sequence[T]:
    """Without the middle of more than MOST_TOKENS values."""
    half = MOST_TOKENS // 2
    return values if len(values) <= MOST_TOKENS else [*values[:half], *values[-half:]]


def _middle_left_out(text: str) -> str:
    half = MOST_CHARACTERS // 2
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"


def _short(value: float) -> float:
    """With few digits; 0 for what is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else 0.0
