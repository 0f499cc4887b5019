"""Held-out prompts are answered by the rollouts beside those for training, and counted apart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EvaluationConfig
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import (
    Completion,
    CoordinatorMessage,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    Sample,
)
from rollcall_runtime.coordinator.completion_endpoint import CompletionVerdict
from rollcall_runtime.coordinator.prompt_dispatcher import PromptDispatcher
from rollcall_runtime.coordinator.prompts import MembersForPrompts
from tests.unit.rollcall_runtime.coordinator.fake_group import Counts
from tests.unit.rollcall_runtime.jobs import job_config

A, B = MemberId("uid-a", "b1"), MemberId("uid-b", "b1")
FIRST = Version(Lineage(1, 1), 10)
HELD_OUT = EvaluationConfig(
    every_steps=5, data=DataConfig((DataSource("held-out.jsonl"),)), prompts=3, samples=2
)


class Rollouts:
    """Two rollouts without a network: what they were sent, and what they answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[MemberId, CoordinatorMessage]] = []
        self.dispatcher = PromptDispatcher(
            config=replace(
                job_config(algorithm={"group_size": 2, "prompts_per_step": 4}), evaluation=HELD_OUT
            ),
            source=lambda index: Prompt((index,)),
            state=None,
            held_out=lambda index: Prompt((1000 + index,)),
            metrics=Counts(),
            bounds=SampleBounds(vocabulary=64),
        )
        self.dispatcher.open(
            MembersForPrompts(
                eligible=lambda: [A, B],
                send=lambda member, message: self.sent.append((member, message)),
                suspicious=lambda *_: None,
                failure_changed=lambda: None,
            )
        )

    def held_out(self) -> list[tuple[MemberId, PromptLease]]:
        return [
            (member, lease)
            for member, lease in self.sent
            if isinstance(lease, PromptLease) and lease.tokens[0] >= 1000
        ]

    def answer(self, member: MemberId, lease: PromptLease, *rewards: float) -> CompletionVerdict:
        samples = tuple(Sample((1,), (-0.5,), (10,), reward) for reward in rewards)
        return self.dispatcher.complete(
            Completion("job-uid", member, lease.lease_id, FIRST, samples)
        )


@asynccontextmanager
async def evaluation(
    rollouts: Rollouts,
) -> AsyncIterator["asyncio.Task[list[tuple[float, ...]]]"]:
    """One under way; both rollouts have credit for many prompts."""
    for member in (A, B):
        rollouts.dispatcher.member_message(member, PromptCredit(9))
    task = asyncio.create_task(rollouts.dispatcher.evaluate())
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        rollouts.dispatcher.close()


@pytest.fixture
async def rollouts() -> Rollouts:
    made = Rollouts()
    made.dispatcher.published(FIRST)
    return made


async def test_each_held_out_prompt_is_answered_once(rollouts: Rollouts) -> None:
    async with evaluation(rollouts) as task:
        leases = rollouts.held_out()
        assert sorted(lease.tokens[0] for _, lease in leases) == [1000, 1001, 1002]
        assert {lease.group_size for _, lease in leases} == {2}
        for member, lease in leases:
            reward = float(lease.prompt)
            assert rollouts.answer(member, lease, reward, 0.5) is CompletionVerdict.COUNTED
        assert sorted(await asyncio.wait_for(task, 5)) == [(0.0, 0.5), (1.0, 0.5), (2.0, 0.5)]


async def test_training_goes_on_beside_it_and_takes_none_of_its_samples(
    rollouts: Rollouts,
) -> None:
    async with evaluation(rollouts):
        for member, lease in rollouts.held_out():
            rollouts.answer(member, lease, 1.0, 1.0)
        training = [
            (member, lease)
            for member, lease in rollouts.sent
            if isinstance(lease, PromptLease) and lease.tokens[0] < 1000
        ]
        assert len(training) == 12, "the credit that the evaluation left"
        for member, lease in training[:4]:
            rollouts.answer(member, lease, 0.0, 1.0)
        batch = await asyncio.wait_for(rollouts.dispatcher.next_batch(FIRST.number), 5)
        assert {item.lease.tokens[0] for item in batch} == {0, 1, 2, 3}


async def test_a_lost_rollouts_held_out_prompts_go_to_another(rollouts: Rollouts) -> None:
    async with evaluation(rollouts) as task:
        rollouts.dispatcher.member_disconnected(A)
        rollouts.dispatcher.dispatch()
        given = {lease.tokens[0] for member, lease in rollouts.held_out() if member == B}
        assert given == {1000, 1001, 1002}
        for member, lease in rollouts.held_out():
            if member == B:
                rollouts.answer(B, lease, 1.0, 0.0)
        assert len(await asyncio.wait_for(task, 5)) == 3


async def test_a_returned_lease_is_given_out_again(rollouts: Rollouts) -> None:
    async with evaluation(rollouts):
        member, lease = rollouts.held_out()[0]
        rollouts.dispatcher.member_message(member, PromptLeaseReturned(lease.lease_id))
        assert [given.tokens for _, given in rollouts.held_out()].count(lease.tokens) == 2


async def test_what_an_abandoned_evaluation_asked_for_is_revoked(rollouts: Rollouts) -> None:
    async with evaluation(rollouts) as task:
        leases = rollouts.held_out()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        revoked = {m.lease_id for _, m in rollouts.sent if isinstance(m, PromptLeaseRevoked)}
        assert revoked == {lease.lease_id for _, lease in leases}
        assert rollouts.answer(*leases[0], 1.0, 1.0) is CompletionVerdict.DUPLICATE


async def test_there_is_one_evaluation_at_a_time(rollouts: Rollouts) -> None:
    async with evaluation(rollouts):
        with pytest.raises(RuntimeError, match="no other beside it"):
            await rollouts.dispatcher.evaluate()


async def test_the_next_evaluation_has_leases_of_its_own(rollouts: Rollouts) -> None:
    seen: set[str] = set()
    for _ in range(2):
        async with evaluation(rollouts) as task:
            fresh = [(m, lease) for m, lease in rollouts.held_out() if lease.lease_id not in seen]
            assert len(fresh) == 3
            for member, lease in fresh:
                rollouts.answer(member, lease, 1.0, 1.0)
            await asyncio.wait_for(task, 5)
            seen |= {lease.lease_id for _, lease in fresh}
