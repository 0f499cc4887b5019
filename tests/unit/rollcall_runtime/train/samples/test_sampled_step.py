"""A record says of a response what the step and the job know of it, within bounds."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.job_config import JobConfig, RewardPart, RewardScoringConfig
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_protocol.sample_record import MOST_TOKENS, SampleRecord, read_records
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.samples.sampled_step import SampleDescriber, SampledStep
from rollcall_runtime.train.samples.token_figures import TokenFigures
from tests.unit.rollcall_runtime.jobs import job_config

EOS = 2
GOOD = Sample((5, EOS), (-1.0, -0.5), (7, 8), 0.5, parts=(1.0, 0.25), seconds=1.5)
PARTS = RewardScoringConfig(parts=(RewardPart("format", "m:a"), RewardPart("answer", "m:b")))


def group(*samples: Sample, prompt: int = 17, **changes: Any) -> CompletedPrompt:
    lease = PromptLease("1.1.1", prompt, (0, 9, 1), len(samples), 0, **changes)
    version = Version(Lineage(1, 1), 7)
    return CompletedPrompt(lease, Completion("u", MemberId("a", "b"), "1.1.1", version, samples))


def records(
    *groups: CompletedPrompt, rows: dict[int, TokenFigures], job: JobConfig | None = None
) -> list[SampleRecord]:
    job = job or job_config(reward_scoring=PARTS)
    step = SampledStep(3, 8, 1000.5, groups, rows)
    return SampleDescriber(job, open_model(job.model)).describe(step)


def of_one(sample: Sample, figures: TokenFigures | None = None, **job: Any) -> SampleRecord:
    values = figures or TokenFigures([0.5] * len(sample.tokens))
    (found,) = records(group(sample), rows={0: values}, job=job_config(reward_scoring=PARTS, **job))
    assert read_records(found.line()) == [found], "it is within the bounds of readers"
    return found


def test_a_record_has_all_that_is_known_of_a_response() -> None:
    other = replace(GOOD, reward=1.5)
    found = records(
        group(other, prompt=16),
        group(GOOD, other),
        rows={1: TokenFigures([-0.70710678, -0.70710678], [0.1, None])},
    )
    assert found == [
        SampleRecord(
            step=3,
            prompt=17,
            sample=0,
            time=1000.5,
            reward=0.5,
            group_size=2,
            group_mean=1.0,
            parts={"format": 1.0, "answer": 0.25},
            prompt_text="0 9 1 ",
            tokens=("5 ", "2 "),
            left_out=0,
            advantages=((-0.707107, 2),),
            mismatch=(0.1, None),
            versions=((7, 1), (8, 1)),
            trained_version=8,
            ended="end token",
            seconds=1.5,
        )
    ]


def test_tokens_of_an_environment_have_no_figures_of_their_own() -> None:
    sample = replace(GOOD, tokens=(5, 6, 7), logprobs=(-1.0, 0.0, -1.0), versions=(7, -1, 7))
    found = of_one(sample, TokenFigures([0.5, 0.25], [0.1, 0.2]))
    assert found.advantages == ((0.5, 1), (0.0, 1), (0.25, 1))
    assert found.mismatch == (0.1, 0.0, 0.2)
    assert found.versions == ((7, 1), (-1, 1), (7, 1))


def test_a_row_that_no_rank_computed_has_no_mismatch() -> None:
    assert of_one(GOOD).mismatch == ()


@pytest.mark.parametrize(
    ("last", "version", "sampling", "why"),
    [
        (EOS, 7, SamplingConfig(), "end token"),
        (5, 7, SamplingConfig(stop_token_ids=(5,)), "end token"),
        (5, 7, SamplingConfig(), "length"),
        (5, 7, SamplingConfig(stop=("6 5",)), "stop string"),
        (5, 7, SamplingConfig(stop=("7 5",)), "length"),
        (5, -1, SamplingConfig(), "environment"),
    ],
)
def test_why_a_response_ended_follows_from_its_last_tokens(
    last: int, version: int, sampling: SamplingConfig, why: str
) -> None:
    sample = replace(GOOD, tokens=(6, last), versions=(7, version))
    figures = TokenFigures([0.5] * (1 if version < 0 else 2))
    assert of_one(sample, figures, algorithm={"sampling": sampling}).ended == why


def test_a_response_without_a_token_has_a_record() -> None:
    empty = replace(GOOD, tokens=(), logprobs=(), versions=())
    found = of_one(empty)
    assert (found.tokens, found.ended, found.versions) == ((), "no token", ())


def test_of_a_long_response_and_a_long_prompt_the_middle_is_left_out() -> None:
    count = MOST_TOKENS + 10
    long = replace(
        GOOD, tokens=(5,) * (count - 1) + (EOS,), logprobs=(-1.0,) * count, versions=(7,) * count
    )
    found = of_one(long, TokenFigures([0.5] * count, [0.1] * count))
    assert (len(found.tokens), found.left_out) == (MOST_TOKENS, 10)
    assert found.tokens[-1] == "2 "
    assert found.versions == ((7, MOST_TOKENS),)
    lease = replace(group(GOOD).lease, tokens=(9,) * 20_000)
    (found,) = records(replace(group(GOOD), lease=lease), rows={0: TokenFigures([0.5, 0.5])})
    assert "characters left out" in found.prompt_text
    assert len(found.prompt_text) < 17_000
