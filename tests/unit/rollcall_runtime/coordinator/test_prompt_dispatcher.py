"""Prompts over real streams: what a rollout reports is what the next one gets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.prompts.prompt_ledger import RejectionReason
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import (
    GenerationProgress,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    Sample,
)
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember
from rollcall_runtime.coordinator.prompt_dispatcher import MAX_REPORTS
from tests.unit.rollcall_runtime.coordinator.fake_group import CONFIG, Group, Worker, eventually

TOKENS = (Response((3, 4), (-0.5, -1.0), (0, 0)), Response((5,), (-2.0,), (0,), finished=True))


@asynccontextmanager
async def two_rollouts(
    folder: Path, **algorithm: Any
) -> AsyncIterator[tuple[Group, Worker, Worker]]:
    """Both serve version 0."""
    config = replace(CONFIG, algorithm=replace(CONFIG.algorithm, **algorithm))
    async with Group(folder, config=config) as group:
        await group.push(1, "a", "b")
        a, b = await group.join("a"), await group.join("b")
        await group.coordinator.ready()
        await group.publish(0)
        yield group, a, b


async def leased(worker: Worker) -> PromptLease:
    await worker.say(PromptCredit(1))
    return await asyncio.wait_for(worker.leases.get(), 5)


def report(group: Group, lease: PromptLease) -> PartialReport:
    lineage = group.coordinator.lineage
    assert lineage is not None
    return PartialReport(lease.lease_id, Version(lineage, 0), (0, 0), TOKENS)


async def test_a_lost_rollouts_tokens_come_with_the_next_lease(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        progress = report(group, await leased(a))
        await a.say(GenerationProgress((progress,)))
        await a.socket.close()
        await eventually(lambda: group.counts.suspicions)
        moved = await leased(b)
        assert progress.version is not None
        assert (moved.prompt, moved.partial) == (0, PartialResponses(progress.version, TOKENS))
        assert await group.complete(b, moved) == 200


async def test_so_they_do_if_it_hands_the_lease_back(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        lease = await leased(a)
        await a.say(GenerationProgress((report(group, lease),)))
        await a.say(PromptLeaseReturned(lease.lease_id))
        moved = await leased(b)
        assert moved.partial is not None
        assert moved.partial.responses == TOKENS


async def test_so_they_do_once_it_is_a_suspect_though_its_stream_stands(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        progress = report(group, await leased(a))
        await a.say(GenerationProgress((progress, PartialReport("unknown"))))
        await eventually(lambda: a.revoked == ["unknown"])  # so it was read
        alive = (RosterMember("uid-b", "b", "127.0.0.1", "pool", "default"),)
        lost = Roster("job-uid", "default", 2, "trainer-uid", EpochCause.MEMBER_LOST, alive)
        assert (await group.put(lost))[0] == 200
        await eventually(lambda: group.counts.sessions[-1].session.epoch == 2)
        moved = await leased(b)
        assert moved.partial is not None
        assert moved.partial.responses == TOKENS
        assert not a.socket.closed


async def test_a_rollout_with_a_lease_that_is_not_current_gets_it_revoked(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        lease = await leased(a)
        await b.say(GenerationProgress((report(group, lease),)))
        await eventually(lambda: b.revoked == [lease.lease_id])
        assert group.counts.refusals == ["late_report"]
        assert not a.revoked


async def test_a_lease_without_reports_of_progress_is_revoked(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path, lease=0.2) as (group, a, b):
        silent, reported = await leased(a), await leased(b)

        async def report_on() -> None:
            while True:
                await b.say(GenerationProgress((report(group, reported),)))
                await asyncio.sleep(0.02)

        reporting = asyncio.create_task(report_on())
        await eventually(lambda: a.revoked == [silent.lease_id])
        await asyncio.sleep(0.5)
        reporting.cancel()
        assert not b.revoked
        assert await group.complete(a, silent) == 409
        assert await group.complete(b, reported) == 200


async def test_without_partial_rollout_prompts_restart_from_the_beginning(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path, partial_rollout=False) as (group, a, b):
        await a.say(GenerationProgress((report(group, await leased(a)),)))
        await a.socket.close()
        await eventually(lambda: group.counts.suspicions)
        moved = await leased(b)
        assert (moved.prompt, moved.partial) == (0, None)


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        (Sample((3,), (-1.0,), (0,), 1e308), "reward"),
        (Sample((64,), (-1.0,), (0,), 0.5), "token"),
        (Sample((3,), (-1.0,), (10**9,), 0.5), "version"),
        (Sample((3,), (), (0,), 0.5), "length"),
    ],
)
async def test_bad_samples_cost_their_prompt_alone(
    tmp_path: Path, sample: Sample, fault: str
) -> None:
    async with two_rollouts(tmp_path) as (group, a, _):
        lease = await leased(a)
        assert await group.complete(a, lease, sample=sample) == 409
        assert group.counts.refusals == [f"bad_sample_{fault}"]
        assert await group.complete(a, lease) == 409, "the lease is over"
        other = await leased(a)
        assert other.prompt != lease.prompt
        assert await group.complete(a, other) == 200
        state = group.prompts.state()
        assert state.counts.rejected == {RejectionReason.BAD_SAMPLES.value: 1}
        (kept,) = state.buffer
        assert kept.lease.prompt == other.prompt


GOOD = Response((3, 4), (-0.5, -1.0), (0, 0))


@pytest.mark.parametrize(
    ("since", "bad", "fault"),
    [
        ((0, 0), (replace(GOOD, tokens=(3, 64)), GOOD), "token"),
        ((0, 0), (replace(GOOD, tokens=(-1, 4)), GOOD), "token"),
        ((0, 0), (GOOD, replace(GOOD, versions=(0, 10**9))), "version"),
        ((0, 0), (GOOD, replace(GOOD, logprobs=(-0.5, 0.5))), "logprob"),
        ((0,), (GOOD,), "group_size"),
        ((0, MAX_POSITIONS), (GOOD, GOOD), "length"),
    ],
)
async def test_bad_tokens_are_not_given_to_the_next_rollout(
    tmp_path: Path, since: tuple[int, ...], bad: tuple[Response, ...], fault: str
) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        good = report(group, await leased(a))
        await a.say(GenerationProgress((good,)))
        await a.say(GenerationProgress((replace(good, since=since, responses=bad),)))
        await eventually(lambda: group.counts.refusals == [f"bad_partial_{fault}"])
        await a.socket.close()
        await eventually(lambda: group.counts.suspicions)
        moved = await leased(b)
        assert moved.partial is not None
        assert moved.partial.responses == TOKENS, "those of the good report"
        assert await group.complete(b, moved) == 200


async def test_a_report_of_a_version_of_the_future_is_dropped(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        good = report(group, await leased(a))
        assert good.version is not None
        later = replace(good.version, number=10**9)
        await a.say(GenerationProgress((replace(good, version=later),)))
        await a.socket.close()
        await eventually(lambda: group.counts.suspicions)
        assert group.counts.refusals == ["bad_partial_version"]
        assert (await leased(b)).partial is None


@pytest.mark.parametrize(
    "message",
    [
        PromptCredit(-1),
        PromptCredit(10**12),
        GenerationProgress((PartialReport("unknown"),) * (MAX_REPORTS + 1)),
    ],
)
async def test_credits_and_reports_of_more_prompts_than_there_can_be_are_refused(
    tmp_path: Path, message: PromptCredit | GenerationProgress
) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        await a.say(message)
        await eventually(lambda: group.counts.refusals == ["bad_prompts"])
        assert a.leases.empty()
        assert not a.revoked
        assert await group.complete(b, await leased(b)) == 200


async def test_credits_add_up_to_no_more_prompts_than_may_run(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path) as (group, a, b):
        most = CONFIG.algorithm.max_concurrent_rollouts
        for _ in range(50):
            await a.say(PromptCredit(most))
        await eventually(lambda: a.leases.qsize() == most)
        await b.say(PromptCredit(0))
        await a.say(PromptLeaseReturned("unknown"))
        await eventually(lambda: group.prompts._credits[a.member] == most)
        assert b.leases.empty()


async def test_bad_samples_of_a_checkpoint_are_sampled_again(tmp_path: Path) -> None:
    async with two_rollouts(tmp_path / "first") as (group, a, _):
        for _ in range(2):
            assert await group.complete(a, await leased(a)) == 200
        state = group.prompts.state()
    first, second = state.buffer
    sample = replace(first.completion.samples[0], reward=float("nan"))
    bad = replace(first, completion=replace(first.completion, samples=(sample, sample)))
    state = replace(state, buffer=(bad, second))
    async with Group(tmp_path / "second", ledger_state=state) as group:
        assert group.counts.refusals == ["bad_saved_reward"]
        await group.push(1, "a")
        a = await group.join("a")
        await group.coordinator.ready()
        await group.publish(0)
        assert (await leased(a)).prompt == bad.lease.prompt
