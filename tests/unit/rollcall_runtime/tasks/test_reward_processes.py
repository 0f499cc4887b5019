"""Samples are scored at once in processes of their own, and harm one another in nothing."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from rollcall_protocol.job_config import RewardErrorConfig, RewardPart, RewardScoringConfig
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.tasks.reward_process import SummedReward
from rollcall_runtime.tasks.reward_processes import RewardProcesses
from rollcall_runtime.tasks.user_process import UserProcess
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import job_config

USERS_REWARDS = """\
import os, time

def slow(prompt, response):
    time.sleep(0.5)
    return len(response)

def infinite(prompt, response):
    return 1e300 * 1e300 if len(response) == 2 else 1.0

def gained(prompt, response, environment_reward):
    return environment_reward

def two_is_bad(prompt, response):
    if len(response) == 2:
        time.sleep(60) if prompt else os._exit(3)
    return os.getpid() / 1e6
"""


@pytest.fixture(autouse=True)
def _users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "several_rewards.py").write_text(USERS_REWARDS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@asynccontextmanager
async def processes(
    function: str, number: int, *, stop: bool = False, seconds: float = 30.0
) -> AsyncIterator[RewardProcesses]:
    job = job_config(
        reward_function=f"several_rewards:{function}",
        reward_scoring=RewardScoringConfig(concurrency=number),
        reward_errors=RewardErrorConfig(timeout=seconds),
    )
    scorer = RewardProcesses(job, directory=None, ends=frozenset(), stop_at_error=stop)
    try:
        await scorer.start()
        yield scorer
    finally:
        await scorer.close()


async def test_samples_are_scored_at_once_and_answered_in_their_order() -> None:
    async with processes("slow", 4) as scorer:
        await scorer.score((), [(5,)] * 4, {})  # all processes have begun
        began = time.monotonic()
        assert await scorer.score((), [(5,) * n for n in (1, 2, 3, 4)], {}) == [1, 2, 3, 4]
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("prompt", "kind"), [((), RewardErrorKind.PROCESS_DIED), ((1,), RewardErrorKind.TIMED_OUT)]
)
async def test_a_sample_that_ends_or_holds_its_process_harms_no_other(
    prompt: tuple[int, ...], kind: RewardErrorKind
) -> None:
    async with processes("two_is_bad", 2, seconds=2.0) as scorer:
        first, error, *rest = await scorer.score(prompt, [(5,), (5, 5), (5,), (5,)], {})
    assert isinstance(error, RewardError)
    assert (error.sample, error.kind) == (1, kind)
    assert all(isinstance(score, float) for score in (first, *rest))


async def test_nothing_after_the_first_error_is_given_if_its_group_is_lost() -> None:
    async with processes("two_is_bad", 3, stop=True) as scorer:
        first, error = await scorer.score((), [(5,), (5, 5), (5,), (5,), (5,)], {})
    assert isinstance(first, float)
    assert isinstance(error, RewardError)
    assert error.sample == 1


async def test_no_process_begins_before_a_sample_waits_for_it() -> None:
    async with processes("two_is_bad", 8) as scorer:
        found = [await scorer.score((), [(5,)], {}) for _ in range(4)]
        running = [process.pid for process in scorer._all if process.pid is not None]
    assert len({score for (score,) in found}) == 1
    assert len(running) == 1


async def test_each_sample_has_what_its_own_environment_gave() -> None:
    async with processes("gained", 2) as scorer:
        assert await scorer.score((), [(5,)] * 3, {}, (0.5, 1.0, 1.5)) == [0.5, 1.0, 1.5]


async def test_all_processes_together_may_have_the_memory_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int | None] = []

    async def start(_code: Any, *, free: int | None) -> Any:
        given.append(free)
        raise SpecError("spec.reward.function", "not today")

    monkeypatch.setattr("rollcall_runtime.tasks.reward_processes.free_memory", lambda: 1 << 30)
    monkeypatch.setattr(UserProcess, "start", start)
    with pytest.raises(SpecError, match="not today"):
        async with processes("slow", 4):
            pass
    assert given == [1 << 28]


async def test_parts_of_a_reward_reach_the_process_with_their_fields() -> None:
    part = RewardPart("a", "exact-match")
    job = job_config(reward_function="")
    job = replace(job, reward_scoring=RewardScoringConfig(parts=(part,)))
    scorer = RewardProcesses(job, directory=None, ends=frozenset(), stop_at_error=False)
    with pytest.raises(SpecError, match=r"^spec.reward.parts\[0\].function: the reward needs text"):
        await scorer.start()


async def test_the_numbers_of_the_parts_of_good_samples_are_passed_on() -> None:
    parts = (
        RewardPart("length", "several_rewards:slow", 0.5),
        RewardPart("finite", "several_rewards:infinite"),
    )
    job = replace(job_config(), reward_scoring=RewardScoringConfig(parts=parts))
    seen: list[dict[str, float]] = []
    scorer = RewardProcesses(
        job,
        directory=None,
        ends=frozenset(),
        stop_at_error=False,
        of_parts=lambda found: seen.append(dict(found)),
    )
    try:
        first, error, third = await scorer.score((), [(5,), (5, 5), (5, 5, 5)], {})
    finally:
        await scorer.close()
    assert (first, third) == (1.5, 2.5)
    assert isinstance(error, RewardError)
    assert isinstance(first, SummedReward)
    assert first.parts == (1.0, 1.0), "in the order of the job's parts"
    assert seen == [{"length": 1.0, "finite": 1.0}, {"length": 3.0, "finite": 1.0}]


@pytest.mark.parametrize(("keep", "reward"), [(True, 1.0), (False, 0.0)])
async def test_the_jobs_choice_of_special_tokens_reaches_the_function(
    tmp_path: Path, keep: bool, reward: float
) -> None:
    tokenizer = Tokenizer(WordLevel({"<end>": 0, "<tag>": 1, "four": 2}))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<end>", "<tag>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    scoring = RewardScoringConfig(
        {"pattern": "<tag> four", "whole": True}, keep_special_tokens=keep
    )
    job = job_config(reward_function="regex", reward_scoring=scoring)
    ends = frozenset({0})
    scorer = RewardProcesses(job, directory=tmp_path, ends=ends, stop_at_error=False)
    try:
        assert await scorer.score((2,), [(1, 2, 0)], {}) == [reward]
    finally:
        await scorer.close()
