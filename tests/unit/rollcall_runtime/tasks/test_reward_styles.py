"""Functions written for TRL and for verl run unchanged, and wrong ones are refused at the start."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.job_config import RewardPart, RewardStyle
from rollcall_runtime.tasks.reward_function import (
    NotApplicableError,
    RewardFunction,
    UnusableRewardError,
    load_sum,
)
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import LETTERS, tiny_tokenizer

CHAT = [{"role": "user", "content": "say a"}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_tokenizer(LETTERS).save_pretrained(tmp_path)
    return tmp_path


def made(function: Callable[..., Any], style: RewardStyle, directory: Path) -> RewardFunction:
    return RewardFunction(function, "m:f", directory=directory, style=style)


def test_trl_gives_lists_of_one_and_the_columns_of_the_row(directory: Path) -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, ground_truth: Any, **kwargs: Any) -> list[float]:
        seen.update(kwargs, prompts=prompts, completions=completions, truth=ground_truth)
        kwargs["log_metric"]("accuracy", 1.0)
        kwargs["log_extra"]("column", ["a"])
        return [0.5]

    row = {"prompt": "say a", "completion": "a", "ground_truth": "a", "level": 3}
    assert made(reward, RewardStyle.TRL, directory)((3, 4), (5,), row) == 0.5
    assert (seen["prompts"], seen["truth"], seen["level"]) == (["say a"], ["a"], [3])
    assert seen["completion_ids"] == [[5]]
    (completion,) = seen["completions"]
    assert isinstance(completion, str)
    assert completion
    assert not {"prompt", "completion"} & seen.keys()


def test_where_the_prompt_is_a_chat_the_completion_is_one(directory: Path) -> None:
    seen: list[Any] = []

    async def reward(completions: Any, prompts: Any) -> list[float]:
        seen.extend([prompts, completions])
        return [1.0]

    function = made(reward, RewardStyle.TRL, directory)
    for row in ({"prompt": CHAT}, {"messages": CHAT}):
        seen.clear()
        assert function((3,), (5,), row) == 1.0
        assert seen[0] == [CHAT]
        ((message,),) = seen[1]
        assert message["role"] == "assistant"
        assert message["content"]


def test_none_of_trl_leaves_its_part_out_and_is_no_reward_alone(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "styled_rewards.py").write_text(
        "def none(completions, **kwargs): return [None]\n"
        "def one(completions, **kwargs): return [1.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    none = RewardPart("none", "styled_rewards:none", 2.0, style=RewardStyle.TRL)
    one = RewardPart("one", "styled_rewards:one", 0.5, style=RewardStyle.TRL)
    total = load_sum([none, one], directory=directory)
    assert total((3,), (5,), {"prompt": "a"}) == 0.5
    assert total.numbers == {"none": 0.0, "one": 1.0}
    with pytest.raises(NotApplicableError):
        load_sum([none], directory=directory)((3,), (5,), {"prompt": "a"})


def test_verl_gives_what_its_reward_managers_give(directory: Path) -> None:
    seen: dict[str, Any] = {}

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
    ) -> dict[str, float]:
        seen.update(source=data_source, text=solution_str, truth=ground_truth, info=extra_info)
        return {"score": 0.25, "accuracy": 1.0}

    row = {"data_source": "gsm8k", "reward_model": {"ground_truth": ["4"], "style": "rule"}}
    function = made(compute_score, RewardStyle.VERL, directory)
    assert function((3,), (5,), row) == 0.25
    assert (seen["source"], seen["truth"], seen["info"]) == ("gsm8k", ["4"], {})
    assert function((3,), (5,), {**row, "extra_info": {"index": 7}}) == 0.25
    assert seen["info"] == {"index": 7}
    with pytest.raises(UnusableRewardError, match="'reward_model' has no 'ground_truth'"):
        function((3,), (5,), {**row, "reward_model": {}})


def no_completions(prompts: Any) -> None: ...
def wants_state(completions: Any, trainer_state: Any) -> None: ...
def by_position(completions: Any, more: Any, /) -> None: ...
def of_trl(completions: Any, **kwargs: Any) -> None: ...
def of_rollcall(prompt: Any, response: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "style", "problem"),
    [
        (no_completions, RewardStyle.TRL, "has no parameter `completions`"),
        (wants_state, RewardStyle.TRL, "wants trainer_state, which a rollout does not have"),
        (by_position, RewardStyle.TRL, "must take its arguments by name"),
        (of_rollcall, RewardStyle.TRL, "has no parameter `completions`"),
        (of_trl, RewardStyle.VERL, "cannot be called as .*data_source=.*style: verl"),
        (of_rollcall, RewardStyle.VERL, "cannot be called as"),
    ],
)
def test_a_function_of_another_style_is_refused(
    directory: Path, function: Callable[..., Any], style: RewardStyle, problem: str
) -> None:
    with pytest.raises(SpecError, match=f"^spec.reward.function: m:f.*{problem}"):
        made(function, style, directory)


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ([], "returned 0 rewards for one completion"),
        ([1.0, 2.0], "returned 2 rewards for one completion"),
        (["a"], "not_a_number"),
        ([math.nan], "not_finite"),
    ],
)
def test_what_is_no_reward_of_one_completion_is_an_error(
    directory: Path, returned: list[Any], problem: str
) -> None:
    function = made(lambda completions, **_: returned, RewardStyle.TRL, directory)  # noqa: ARG005
    with pytest.raises(UnusableRewardError, match=problem):
        function((3,), (5,), {"prompt": "a"})


def test_a_column_that_the_row_lacks_is_named(directory: Path) -> None:
    function = made(lambda completions, answer: [1.0], RewardStyle.TRL, directory)  # noqa: ARG005
    with pytest.raises(UnusableRewardError, match="m:f wants answer; the row has the columns pro"):
        function((3,), (5,), {"prompt": "a"})
