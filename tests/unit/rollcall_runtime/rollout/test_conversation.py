"""A response alternates with its environment, which is made again when its process is lost."""

from dataclasses import replace

import pytest

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.rollout.conversation import Conversation
from rollcall_runtime.rollout.inference_engine import GenerationRequest
from rollcall_runtime.tasks.environments.environment_process import EnvironmentFailedError
from tests.unit.rollcall_runtime.rollout.echo_environment import Echo, conversations
from tests.unit.rollcall_runtime.rollout.fake_engine import lease


def conversation(
    echo: Echo, *, max_turns: int = 8, context: int | None = None, sample: int = 0
) -> Conversation:
    of = conversations(echo, max_turns=max_turns, context=context)
    return of.new(replace(lease(3), row={"level": 1}), sample)


def sampled(response: Response, *tokens: int) -> Response:
    """The response with a turn behind it, of version 4."""
    count = len(tokens)
    return Response(
        (*response.tokens, *tokens),
        (*response.logprobs, *(-1.0,) * count),
        (*response.versions, *(4,) * count),
    )


async def test_turns_and_answers_alternate_until_the_environment_is_done() -> None:
    talk = conversation(Echo())
    response = await talk.begin(Response())
    assert response == Response()
    response = await talk.answer(sampled(response, 5, 6))
    assert response == Response((5, 6, 5), (-1.0, -1.0, 0.0), (4, 4, NOT_SAMPLED))
    response = await talk.answer(sampled(response, 7, 2))
    assert (response.tokens, response.finished) == ((5, 6, 5, 7, 2), True)
    assert talk.reward == 1.0


async def test_the_first_observation_follows_the_prompt() -> None:
    response = await conversation(Echo(first=[9])).begin(Response())
    assert response == Response((9,), (0.0,), (NOT_SAMPLED,))


async def test_no_more_turns_are_sampled_than_the_job_allows() -> None:
    talk = conversation(Echo(), max_turns=2)
    response = await talk.answer(sampled(await talk.begin(Response()), 5))
    response = await talk.answer(sampled(response, 6))
    assert (response.tokens, response.finished) == ((5, 5, 6), True)
    assert talk.reward == 1.0, "the last turn counts too"


async def test_a_response_ends_before_the_context_is_full() -> None:
    prompt = len(lease(3).tokens)
    room = conversation(Echo(), context=prompt + 3)
    response = await room.answer(sampled(await room.begin(Response()), 5))
    assert (response.tokens, response.finished) == ((5, 5), False), "one token fits"
    full = conversation(Echo(), context=prompt + 2)
    response = await full.answer(sampled(await full.begin(Response()), 5))
    assert (response.tokens, response.finished) == ((5,), True)


async def test_a_first_observation_that_leaves_no_room_fails_the_sample() -> None:
    prompt = len(lease(3).tokens)
    talk = conversation(Echo(first=[9, 9]), context=prompt + 2)
    with pytest.raises(EnvironmentFailedError) as failed:
        await talk.begin(Response())
    assert failed.value.kind is RewardErrorKind.BAD_ANSWER
    assert failed.value.value == (
        "the first observation has 2 tokens, and behind the prompt's 4 the context has no room for "
        "a response"
    )


async def test_what_a_rollout_of_a_larger_context_began_ends_where_this_ones_is_full() -> None:
    before = conversation(Echo())
    response = await before.answer(sampled(await before.begin(Response()), 5, 6))
    full = await conversation(Echo(), context=len(lease(3).tokens) + 3).begin(response)
    assert (full.tokens, full.finished) == ((5, 6, 5), True)
    room = await conversation(Echo(), context=len(lease(3).tokens) + 4).begin(response)
    assert room == response


async def test_each_turn_is_requested_behind_all_before_it_with_a_seed_of_its_own() -> None:
    talk = conversation(Echo(), context=100)
    of = GenerationRequest((0, 1), SamplingConfig(), 11)
    first = talk.request(of, Response())
    assert (first.prompt, first.seed, first.begun) == ((0, 1), 11, Response())
    response = await talk.answer(sampled(await talk.begin(Response()), 5, 6))
    second = talk.request(of, response)
    assert (second.prompt, second.begun) == ((0, 1, 5, 6, 5), Response())
    assert second.seed != first.seed


@pytest.mark.parametrize(("asked", "context", "bound"), [(0, 100, 5), (9, 100, 9), (9, 6, 4)])
async def test_a_turn_has_the_tokens_that_it_may_have_and_that_fit(
    asked: int, context: int, bound: int
) -> None:
    of = GenerationRequest((0, 1), SamplingConfig(max_tokens=asked), 11)
    request = conversation(Echo(), context=context).request(of, Response())
    assert request.sampling.max_tokens == bound


async def test_another_rollout_plays_the_turns_again_and_goes_on() -> None:
    before = conversation(Echo(first=[9]))
    response = await before.answer(sampled(await before.begin(Response()), 5, 6))
    echo = Echo(first=[9])
    after = conversation(echo)
    assert await after.begin(response) == response
    assert [call[0] for call in echo.calls] == ["reset", "step"]
    assert after.reward == before.reward == 0.5
    assert (await after.answer(sampled(response, 2))).finished


async def test_of_a_finished_response_the_reward_is_found_again() -> None:
    before = conversation(Echo())
    response = await before.answer(sampled(await before.begin(Response()), 5, 2))
    after = conversation(Echo())
    assert await after.begin(response) == response
    assert after.reward == before.reward == 0.5


async def test_the_same_seed_and_row_make_it_again_and_other_samples_have_others() -> None:
    echo = Echo()
    for sample in (0, 0, 1):
        await conversation(echo, sample=sample).begin(Response())
    again = [call[2:] for call in echo.calls]
    assert again[0] == again[1]
    assert again[0][:2] == again[2][:2] == (lease(3).tokens, {"level": 1})
    assert again[0] != again[2]


@pytest.mark.parametrize("lost", [[0], [1], [2], [1, 3]])
async def test_an_environment_that_is_lost_is_made_again_with_the_turns_so_far(
    lost: list[int],
) -> None:
    talk = conversation(Echo(lost=lost))
    response = await talk.answer(sampled(await talk.begin(Response()), 5))
    response = await talk.answer(sampled(response, 6, 2))
    assert (response.tokens, response.finished) == ((5, 5, 6, 2), True)
    assert talk.reward == 1.0


async def test_a_sample_whose_environment_is_lost_again_and_again_fails() -> None:
    echo = Echo(lost=range(1, 100))
    talk = conversation(echo)
    response = sampled(await talk.begin(Response()), 5)
    with pytest.raises(EnvironmentFailedError) as failed:
        await talk.answer(response)
    assert failed.value.kind is RewardErrorKind.PROCESS_DIED
    assert failed.value.value == "the process ended"
    assert [call[0] for call in echo.calls].count("reset") == 1 + 2, "it was made again twice"


@pytest.mark.parametrize("other", [Echo(first=[8]), Echo()])
async def test_an_environment_that_answers_otherwise_the_second_time_fails_the_sample(
    other: Echo,
) -> None:
    before = conversation(Echo(first=[9]))
    response = await before.answer(sampled(await before.begin(Response()), 5))
    with pytest.raises(EnvironmentFailedError, match="it answered otherwise") as failed:
        await conversation(other).begin(response)
    assert failed.value.kind is RewardErrorKind.BAD_ANSWER


async def test_it_forgets_the_environment_when_it_is_closed() -> None:
    echo = Echo()
    talk = conversation(echo)
    await talk.begin(Response())
    assert echo.held
    talk.close()
    assert not echo.held
