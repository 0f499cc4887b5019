"""The check names what is wrong with a sample, and finds nothing wrong with a good one."""

import math
from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.prompts.sample_check import SampleBounds, SampleFault
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.reward_errors import MAX_REWARD

NEWEST = Version(Lineage(1, 1), 7)
LEASE = PromptLease("1.1.1", 0, tokens=(1, 2, 3), group_size=2, seed=0)
BOUNDS = SampleBounds(vocabulary=10, positions=6)
GOOD = Sample(tokens=(0, 9), logprobs=(-0.5, 0.0), versions=(0, 7), reward=1.0)


def sent(*samples: Sample, version: Version = NEWEST) -> Completion:
    return Completion("job", MemberId("pod", "b"), LEASE.lease_id, version, samples)


def fault(completion: Completion, bounds: SampleBounds = BOUNDS) -> SampleFault | None:
    found = bounds.check(completion, LEASE, newest=NEWEST)
    return found.fault if found else None


def test_samples_within_all_bounds_are_good() -> None:
    assert fault(sent(GOOD, GOOD)) is None
    longest = Sample((1,) * 3, (-1e4,) * 3, (7,) * 3, -MAX_REWARD)
    assert fault(sent(GOOD, longest)) is None
    assert fault(sent(GOOD, replace(GOOD, parts=(-MAX_REWARD,) * 64, seconds=1e8))) is None
    assert fault(sent(GOOD, replace(GOOD, tokens=(), logprobs=(), versions=()))) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokens": (0, 10)}, SampleFault.TOKEN),
        ({"tokens": (-1, 0)}, SampleFault.TOKEN),
        ({"tokens": (0,)}, SampleFault.LENGTH),
        ({"logprobs": (-1.0,)}, SampleFault.LENGTH),
        ({"versions": (7,)}, SampleFault.LENGTH),
        (
            {"tokens": (1,) * 4, "logprobs": (-1.0,) * 4, "versions": (7,) * 4},
            SampleFault.LENGTH,
        ),
        ({"logprobs": (-1.0, math.nan)}, SampleFault.LOGPROB),
        ({"logprobs": (-math.inf, -1.0)}, SampleFault.LOGPROB),
        ({"logprobs": (0.5, -1.0)}, SampleFault.LOGPROB),
        ({"versions": (8, 7)}, SampleFault.VERSION),
        ({"versions": (7, -1)}, SampleFault.VERSION),
        ({"versions": (10**400, 7)}, SampleFault.VERSION),
        ({"reward": math.nan}, SampleFault.REWARD),
        ({"reward": -math.inf}, SampleFault.REWARD),
        ({"reward": 1e308}, SampleFault.REWARD),
        ({"parts": (0.5, math.nan)}, SampleFault.REWARD),
        ({"parts": (math.inf,)}, SampleFault.REWARD),
        ({"parts": (0.5,) * 65}, SampleFault.REWARD),
        ({"seconds": math.nan}, SampleFault.LENGTH),
        ({"seconds": -0.5}, SampleFault.LENGTH),
        ({"seconds": 1e9}, SampleFault.LENGTH),
    ],
)
def test_a_value_out_of_its_bounds_is_found_in_any_sample(
    changes: dict[str, Any], expected: SampleFault
) -> None:
    bad = replace(GOOD, **changes)
    assert fault(sent(bad, GOOD)) is fault(sent(GOOD, bad)) is expected


def test_a_rollout_gives_no_parts_of_trajectories() -> None:
    part = replace(GOOD, trajectory=1)
    assert fault(sent(GOOD, part)) is SampleFault.TRAJECTORY
    of_agents = replace(BOUNDS, given_tokens=True)
    assert fault(sent(part, part), of_agents) is None
    for number in (2, -2):
        odd = replace(GOOD, trajectory=number)
        assert fault(sent(GOOD, odd), of_agents) is SampleFault.TRAJECTORY


@pytest.mark.parametrize("count", [0, 1, 3, 800])
def test_another_number_of_samples_than_asked_for_is_bad(count: int) -> None:
    assert fault(sent(*[GOOD] * count)) is SampleFault.GROUP_SIZE


@pytest.mark.parametrize("number", [-1, 8, 10**9])
def test_a_completion_of_a_version_that_cannot_be_is_bad(number: int) -> None:
    later = Version(NEWEST.lineage, number)
    assert fault(sent(GOOD, GOOD, version=later)) is SampleFault.VERSION


def test_without_a_bound_on_positions_a_response_may_be_long() -> None:
    long = Sample((1,) * 500, (-1.0,) * 500, (7,) * 500, 0.0)
    assert fault(sent(GOOD, long), SampleBounds(vocabulary=10)) is None


def test_the_problem_names_the_sample_and_the_value() -> None:
    found = BOUNDS.check(sent(GOOD, replace(GOOD, reward=math.nan)), LEASE, newest=NEWEST)
    assert found is not None
    assert found.problem == "sample 1: reward nan is not within 1e+06"


def test_tokens_of_no_version_are_good_in_a_job_with_an_environment_alone() -> None:
    spoken = replace(GOOD, versions=(7, NOT_SAMPLED))
    with_environment = replace(BOUNDS, given_tokens=True)
    assert fault(sent(GOOD, spoken)) is SampleFault.VERSION
    assert fault(sent(GOOD, spoken), with_environment) is None
    assert fault(sent(GOOD, replace(GOOD, versions=(7, -2))), with_environment)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ((), "the prompt is empty"),
        ((1, 10), "the prompt's token 10 is none of 10"),
        ((1,) * 7, "the prompt has 7 tokens, of 6 that fit: shorten it"),
    ],
)
def test_a_prompt_that_no_model_takes_is_bad(prompt: tuple[int, ...], problem: str) -> None:
    bad = BOUNDS.check_request(prompt, Response())
    assert bad is not None
    assert bad.problem == problem


def test_a_prompt_may_take_all_positions() -> None:
    assert BOUNDS.check_request((1,) * 6, Response()) is None
