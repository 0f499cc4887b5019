"""Samples that the trainer scores otherwise exclude their rollout; what proves nothing does not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind
from rollcall_runtime.coordinator.reward_check import MAX_WRONG, TOLERANCE, WAITING, RewardCheck
from rollcall_runtime.tasks.reward_process import Score
from tests.unit.rollcall_runtime.rollout.function_scorer import FunctionScorer

LIAR, HONEST = MemberId("uid-liar", "boot"), MemberId("uid-honest", "boot")
LEASE = PromptLease("l", 0, (1, 2), 1, 0)
ERROR = RewardError(0, RewardErrorKind.RAISED, "KeyError", "f.py", 1)


def completion(member: MemberId, *rewards: float) -> Completion:
    samples = tuple(Sample((3,), (-1.0,), (0,), reward) for reward in rewards)
    return Completion("job", member, "l", Version(Lineage(1, 1), 0), samples)


class Checked:
    """What a check counted, and whom it excluded."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.wrong: list[tuple[MemberId, str]] = []


@asynccontextmanager
async def checking(
    function: Callable[..., Score], *, share: float = 1.0, chance: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[tuple[RewardCheck, Checked]]:
    found = Checked()
    check = RewardCheck(
        FunctionScorer(function), share=share, counted=found.counted.append, chance=chance
    )
    task = asyncio.create_task(check.run(lambda member, why: found.wrong.append((member, why))))
    try:
        yield check, found
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not task.done()
    finally:
        task.cancel()


async def settle() -> None:
    for _ in range(1000):
        await asyncio.sleep(0)


async def test_the_third_wrong_reward_excludes_its_rollout_and_no_other() -> None:
    async with checking(lambda *_: 0.25) as (check, found):
        for _ in range(MAX_WRONG - 1):
            check.offer(completion(LIAR, 1.0), LEASE)
        check.offer(completion(HONEST, *[0.25] * 20), LEASE)
        await settle()
        assert found.wrong == []
        check.offer(completion(LIAR, 0.25, 1.0, 1.0), LEASE)
        await settle()
    ((member, why),) = found.wrong
    assert member == LIAR
    assert why == "3 wrong rewards, the last: 1 for a sample that scores 0.25"
    assert found.counted == ["wrong_reward"] * (MAX_WRONG + 1)


@pytest.mark.parametrize("said", [0.25 * (1 + TOLERANCE / 2), 0.25 - TOLERANCE / 2])
async def test_rounding_is_no_lie(said: float) -> None:
    async with checking(lambda *_: 0.25) as (check, found):
        check.offer(completion(HONEST, *[said] * 9), LEASE)
    assert found.counted == []


async def test_a_function_that_gives_another_number_here_proves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers: Iterator[float] = iter(range(1000))
    async with checking(lambda *_: float(next(numbers))) as (check, found):
        check.offer(completion(HONEST, *[-1.0] * 9), LEASE)
    assert found.wrong == []
    assert set(found.counted) == {"unsteady_reward"}
    assert "spec.reward.verifyShare cannot check such a function" in caplog.text


async def test_an_error_here_proves_nothing() -> None:
    async with checking(lambda *_: ERROR) as (check, found):
        check.offer(completion(HONEST, *[1.0] * 9), LEASE)
    assert found.counted == []


async def test_a_share_of_the_samples_is_scored_with_their_prompt_and_row() -> None:
    scored: list[tuple[object, ...]] = []
    chances = iter([0.0, 0.2, 0.09, 0.1, 0.99])

    def score(*arguments: object) -> float:
        scored.append(arguments)
        return 1.0

    async with checking(score, share=0.1, chance=lambda: next(chances)) as (check, _):
        check.offer(completion(HONEST, *[1.0] * 5), LEASE)
    assert scored == [((1, 2), (3,), {})] * 2


async def test_a_slow_function_holds_up_nothing_and_what_waits_is_bounded() -> None:
    check = RewardCheck(
        FunctionScorer(lambda *_: 1.0), share=1.0, counted=lambda _: None, chance=lambda: 0.0
    )
    check.offer(completion(HONEST, *[1.0] * (3 * WAITING)), LEASE)
    assert check._waiting.qsize() == WAITING
