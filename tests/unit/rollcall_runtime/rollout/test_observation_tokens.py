"""What an environment answers becomes tokens that follow what the model sampled."""

from typing import Any

import pytest

from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.rollout.observation_tokens import ObservationTokens
from rollcall_runtime.tasks.environments.environment_process import EnvironmentFailedError
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.data.character_tokenizer import (
    END,
    STRICT,
    THINKING,
    character_model,
    no_tokenizer,
)

TOOL = [{"role": "tool", "content": "five"}]


async def tokens(observation: Any, *, after: tuple[int, ...] = (), **model: Any) -> list[int]:
    made = character_model(**model)
    return await ObservationTokens(made).tokens(observation, after=after)


async def text(observation: Any, *, after: tuple[int, ...] = (), **model: Any) -> str:
    tokenizer = character_model().tokenizer
    return tokenizer.decode(await tokens(observation, after=after, **model), special=True)


@pytest.mark.parametrize("nothing", [None, "", []])
async def test_nothing_has_no_tokens(nothing: Any) -> None:
    assert await tokens(nothing) == []


async def test_tokens_stay_as_they_are_if_the_model_knows_them() -> None:
    assert await ObservationTokens(no_tokenizer(13)).tokens([5, 12], after=()) == [5, 12]
    for unknown in (13, -1):
        with pytest.raises(EnvironmentFailedError, match="the model knows 0 to 12") as failed:
            await ObservationTokens(no_tokenizer(13)).tokens([5, unknown], after=())
        assert failed.value.kind is RewardErrorKind.BAD_ANSWER


async def test_a_text_is_tokenized_by_itself() -> None:
    assert await text("5 eggs") == "5 eggs"


async def test_messages_follow_a_turn_as_the_chat_template_writes_them() -> None:
    rendered = "<|im_end|>\n<|im_start|>tool\nfive<|im_end|>\n<|im_start|>assistant\n"
    assert await text(TOOL) == rendered


async def test_the_token_that_ended_the_turn_is_not_there_twice() -> None:
    rendered = "\n<|im_start|>tool\nfive<|im_end|>\n<|im_start|>assistant\n"
    assert await text(TOOL, after=(7, END)) == rendered


async def test_a_template_that_thinks_in_the_last_message_alone_writes_the_same() -> None:
    assert await tokens(TOOL, template=THINKING) == await tokens(TOOL)


async def test_a_template_that_refuses_the_messages_fails_the_sample() -> None:
    with pytest.raises(EnvironmentFailedError, match="roles must alternate"):
        await tokens(TOOL, template=STRICT)
    with pytest.raises(EnvironmentFailedError, match="leaves out the message"):
        await tokens(TOOL, template="nothing of them")


@pytest.mark.parametrize(
    "unusable",
    [
        "half of a pair: \ud83d",
        [{"role": "tool", "content": "\ud83d"}],
        [{**TOOL[0], "content": 5}],
    ],
)
async def test_what_has_no_tokens_fails_the_sample(unusable: Any) -> None:
    with pytest.raises(EnvironmentFailedError) as failed:
        await tokens(unusable)
    assert failed.value.kind is RewardErrorKind.BAD_ANSWER


async def test_text_and_messages_need_a_tokenizer() -> None:
    with pytest.raises(SpecError, match="no tokenizer"):
        await ObservationTokens(no_tokenizer()).tokens("five", after=())
    with pytest.raises(SpecError, match="no chat template"):
        await tokens(TOOL, template=None)
