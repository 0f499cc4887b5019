"""Samples without a usable reward: what becomes of their prompts, of the job, and what is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall_protocol.job_config import EnvironmentConfig, RewardErrorConfig
from rollcall_protocol.prompts.prompt_ledger import RejectionReason
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptCredit, PromptLease, Sample
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.coordinator.reward_failures import (
    QUIET,
    QUIET_SECONDS,
    RewardFailures,
)
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    CONFIG,
    Counts,
    Group,
    Worker,
    eventually,
)

RAISED = RewardError(1, RewardErrorKind.RAISED, "KeyError: 'answer'", "task.py", 12)
HUNG = RewardError(0, RewardErrorKind.TIMED_OUT, "30 s", "task.py", 3)
LEASE = PromptLease("1", 7, tokens=(0, 4, 1), group_size=2, seed=0)
MESSAGE = "m:f raised KeyError: 'answer' (task.py:12), for prompt 7 (tokens 0 4 1)"


@asynccontextmanager
async def rollout(folder: Path, settings: RewardErrorConfig) -> AsyncIterator[tuple[Group, Worker]]:
    config = replace(CONFIG, reward_errors=settings)
    async with Group(folder, config=config) as group:
        await group.push(1, "a")
        worker = await group.join("a")
        await group.coordinator.ready()
        await group.publish(0)
        yield group, worker


async def answer(group: Group, worker: Worker, *errors: RewardError) -> PromptLease:
    """Take a prompt, and answer it with these errors."""
    await worker.say(PromptCredit(1))
    lease = await asyncio.wait_for(worker.leases.get(), 5)
    assert await group.complete(worker, lease, errors=errors) == 200
    return lease


async def test_a_group_with_an_error_is_rejected_as_a_whole(tmp_path: Path) -> None:
    async with rollout(tmp_path, RewardErrorConfig()) as (group, worker):
        lost = await answer(group, worker, RAISED)
        kept = await answer(group, worker)
        state = group.prompts.state()
        assert state.counts.rejected == {RejectionReason.NO_REWARD.value: 1}
        assert [item.lease.prompt for item in state.buffer] == [kept.prompt]
        assert group.counts.reward_errors == ["raised"]
        failure = group.coordinator.report().reward_failure
        assert failure is not None
        assert (failure.prompt, failure.error, failure.function) == (lost.prompt, RAISED, "m:f")


async def test_with_zero_it_is_trained_on_and_counted(tmp_path: Path) -> None:
    async with rollout(tmp_path, RewardErrorConfig("Zero")) as (group, worker):
        await answer(group, worker, HUNG, RAISED)
        state = group.prompts.state()
        assert state.counts.rejected == {}
        (kept,) = state.buffer
        assert kept.completion.reward_errors == (), "a checkpoint needs no errors"
        assert group.counts.reward_errors == ["timed_out", "raised"]


async def test_with_fail_one_rollout_beside_others_does_not_end_training(tmp_path: Path) -> None:
    settings = RewardErrorConfig("Fail", 1.0)
    async with rollout(tmp_path, settings) as (group, liar):
        await group.push(2, "a", "b")
        other = await group.join("b")
        await eventually(lambda: len(group.coordinator.report().members) == 2)
        training = asyncio.create_task(group.prompts.next_batch(0))
        for _ in range(3):
            await answer(group, liar, RAISED)
        await answer(group, other)
        assert not training.done()
        assert group.coordinator.report().reward_failure is not None, "it is shown all the same"
        await answer(group, other, HUNG)
        with pytest.raises(SpecError, match=r"^spec\.reward\.function: m:f .*Fail"):
            await asyncio.wait_for(training, 5)


async def test_with_fail_the_first_one_of_a_single_rollout_ends_training(tmp_path: Path) -> None:
    async with rollout(tmp_path, RewardErrorConfig("Fail", 1.0)) as (group, worker):
        training = asyncio.create_task(group.prompts.next_batch(0))
        await answer(group, worker, RAISED)
        with pytest.raises(SpecError, match=r"^spec\.reward\.function: m:f raised KeyError.*Fail"):
            await asyncio.wait_for(training, 5)


async def test_training_ends_when_the_share_is_exceeded(tmp_path: Path) -> None:
    async with rollout(tmp_path, RewardErrorConfig(max_share=0.2)) as (group, worker):
        training = asyncio.create_task(group.prompts.next_batch(0))
        for _ in range(20):  # each has scored 2 samples, of which 1 failed
            assert not training.done()
            await answer(group, worker, RAISED)
        with pytest.raises(SpecError) as ended:
            await asyncio.wait_for(training, 5)
        assert str(ended.value).startswith(
            "spec.reward.function: 20 of the last 40 samples have no usable reward, more than "
            "spec.reward.maxErrorShare (0.2) allows; the last: m:f raised KeyError: 'answer' "
            "(task.py:12), for prompt "
        )


async def test_samples_behind_the_first_error_of_a_prompt_were_not_scored(tmp_path: Path) -> None:
    async with rollout(tmp_path, RewardErrorConfig(max_share=0.2)) as (group, worker):
        training = asyncio.create_task(group.prompts.next_batch(0))
        for _ in range(20):
            await answer(group, worker, HUNG)  # of the first of two samples
        with pytest.raises(SpecError, match="20 of the last 20 samples have no usable reward"):
            await asyncio.wait_for(training, 5)


# --- what is shown ------------------------------------------------------------------------------


class Shown:
    """A job's failures, and how often what is shown of them changed."""

    def __init__(self) -> None:
        self.changes, self.now = 0, 100.0
        config = replace(
            CONFIG,
            reward_errors=RewardErrorConfig("Zero", 1.0),
            environment=EnvironmentConfig("games:Chess"),
        )
        self.failures = RewardFailures(config, Counts(), self._changed, lambda: self.now)

    def _changed(self) -> None:
        self.changes += 1

    def count(self, *errors: RewardError, prompt: int = 7) -> None:
        sample = Sample((3,), (-1.0,), (0,), 0.0)
        version = Version(Lineage(1, 1), 0)
        member = MemberId("uid", "boot")
        completion = Completion("job-uid", member, "1", version, (sample, sample), errors)
        self.failures.count(completion, replace(LEASE, prompt=prompt))

    @property
    def message(self) -> str | None:
        return self.failures.shown.message if self.failures.shown else None


def test_the_same_error_of_other_prompts_changes_nothing() -> None:
    shown = Shown()
    for prompt in range(7, 11):
        shown.count(RAISED, prompt=prompt)
        shown.count(HUNG, RAISED, prompt=prompt)
    assert (shown.message, shown.changes) == (MESSAGE, 1)


def test_how_often_it_happened_is_said_by_powers_of_ten() -> None:
    shown = Shown()
    for _ in range(999):
        shown.count(RAISED)
    assert (shown.message, shown.changes) == (f"{MESSAGE}, and in 100 samples or more", 3)


def test_another_error_is_shown_once_the_first_happens_no_more() -> None:
    shown = Shown()
    shown.count(RAISED)
    for _ in range(QUIET // 2 - 1):
        shown.count(HUNG)
    shown.now += QUIET_SECONDS
    assert (shown.message, shown.changes) == (MESSAGE, 1)
    shown.count(HUNG)
    shown.count(HUNG)
    assert shown.failures.shown is not None
    assert shown.failures.shown.error == HUNG


def test_nothing_is_shown_after_many_samples_without_an_error() -> None:
    shown = Shown()
    shown.count(RAISED)
    for _ in range(QUIET // 2):
        shown.count()
    assert (shown.message, shown.changes) == (MESSAGE, 1), "within seconds: it may come again"
    shown.now += QUIET_SECONDS
    shown.count()
    assert (shown.message, shown.changes) == (None, 2)


def test_a_rare_error_of_a_fast_job_is_one_episode() -> None:
    shown = Shown()
    for _ in range(6):  # once a minute, a thousand samples between
        shown.count(RAISED)
        for _ in range(QUIET):
            shown.count()
        shown.now += 60
    assert (shown.message, shown.changes) == (MESSAGE, 1)


def test_an_error_of_the_environment_names_it() -> None:
    shown = Shown()
    shown.count(replace(RAISED, environment=True))
    assert shown.message == MESSAGE.replace("m:f", "games:Chess")
