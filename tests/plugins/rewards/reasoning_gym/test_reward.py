"""Questions of reasoning-gym by number, and the score of what a rollout answers."""

import importlib.util
import json
from functools import cache
from typing import Any

import pytest

from rollcall_plugins.rewards.reasoning_gym import reward as gym_reward
from rollcall_plugins.rewards.reasoning_gym.reward import ReasoningGymScore
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_runtime.data.prompt_source import PromptSource, open_prompts
from rollcall_runtime.tasks.reasoning_gym_task import open_task
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.data.character_tokenizer import character_model

# The import takes seconds: one process does it.
pytestmark = pytest.mark.xdist_group("reasoning-gym")

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def opened(name: str = "chain_sum", *, context: int = 4096, **source: Any) -> PromptSource:
    sources = (DataSource(f"builtin:reasoning-gym/{name}", **source),)
    return open_prompts(DataConfig(sources), model=character_model(context=context))


def prompt(source: PromptSource, number: int) -> Prompt:
    found = source.prompt(number)
    assert found is not None
    return found


@cache  # each has a process that imports the package
def made(**config: Any) -> ReasoningGymScore:
    return ReasoningGymScore(config, field="spec.reward.config")


def score(row: dict[str, Any], response: str, **config: Any) -> float:
    travelled = json.loads(json.dumps(row))
    reward = made(**config)
    return reward((1,), (1,), row=travelled, response_text=response)


def test_a_number_has_one_question_whatever_was_asked_before() -> None:
    source, again = opened(config=SUMS), opened(config=SUMS)
    numbers = (5, 3, 5, 70_000, 250_000)
    rows = [prompt(source, number).row for number in numbers]
    assert rows == [prompt(again, number).row for number in reversed(numbers)][::-1]
    assert rows[0] == rows[2] != rows[1]


def test_a_template_puts_examples_before_the_question() -> None:
    source = opened(config=SUMS, template="1 + 2 = 3\n{question}", columns=("answer",))
    tokens = prompt(source, 0).tokens
    question = prompt(opened(config=SUMS), 0).row
    assert question is not None
    model = character_model()
    assert list(tokens) == model.text_tokens(f"1 + 2 = 3\n{question['question']}")
    assert prompt(source, 0).row == {"answer": question["answer"]}


def test_settings_of_the_data_set_hold() -> None:
    rows = [prompt(opened(config=SUMS | {"size": 3}), number).row or {} for number in range(6)]
    assert len({row["question"] for row in rows}) <= 3
    assert all(len(row["question"].split(": ")[1]) == len("1 + 2 =") for row in rows)


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("chain_sums", {}, "reasoning-gym has no data set 'chain_sums'; did you mean chain_sum"),
        ("chain_sum", {"config": {"terms": 3}}, "refuses the settings of 'chain_sum': .*'terms'"),
        ("chain_sum", {"config": {"min_terms": 0}}, "min_terms must be positive"),
        ("chain_sum", {"config": {"size": "many"}}, "refuses the settings|'<=' not supported"),
    ],
)
def test_a_source_that_cannot_be_made_is_refused(
    name: str, source: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError, match=problem) as caught:
        opened(name, **source)
    assert caught.value.field == "spec.data.prompts"


def test_a_question_that_does_not_fit_is_refused_before_the_first_step() -> None:
    with pytest.raises(SpecError, match=r"builtin:reasoning-gym/chain_sum, number \d+: .* tokens"):
        opened(config=SUMS, context=20)


@pytest.mark.skipif(importlib.util.find_spec("bfi") is not None, reason="the package is there")
def test_a_data_set_whose_package_is_absent_is_refused() -> None:
    with pytest.raises(SpecError, match="needs the package bfi, which the image lacks"):
        opened("bf")


def test_settings_are_for_reasoning_gym_alone() -> None:
    sources = (DataSource("/data/p.jsonl", config=SUMS),)
    with pytest.raises(SpecError, match=r"config is for builtin:reasoning-gym/\.\.\. alone"):
        open_prompts(DataConfig(sources), model=character_model())


def test_the_data_set_scores_the_answer() -> None:
    row = open_task("chain_sum", SUMS).row(7)
    assert score(row, f" {row['answer']}\n") == 1
    assert score(row, "twelve") == 0
    assert score(row, f"<answer>{row['answer']}</answer>", extract="<answer>(.*?)</answer>") == 1
    assert score(row, row["answer"], extract="<answer>(.*?)</answer>") == 0  # no answer


def test_an_answer_beside_the_one_in_the_row_may_be_right() -> None:
    task = open_task("graph_color", {})  # many colourings are right; none is in the row
    row = task.row(3)
    assert row["answer"] is None
    possible = task.entry(3)["metadata"]["possible_answer"]
    assert score(row, json.dumps(possible)) == 1
    assert score(row, "{}") < 0.1


def test_one_reward_scores_rows_of_several_data_sets() -> None:
    reward = made()
    for name, config in (("chain_sum", SUMS), ("letter_counting", {}), ("chain_sum", {})):
        for number in (1, 2, 1):
            row = open_task(name, config).row(number)
            assert reward((), (), row=row, response_text=row["answer"]) == 1


def test_an_answer_that_cannot_be_scored_has_the_reward_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gym_reward, "SECONDS", 0.5)
    row = open_task("countdown", {}).row(0)  # its rule evaluates the answer
    assert score(row, "9**9**9**9") < 0.1
    assert score(row, row["answer"]) == 1


def test_a_row_of_another_release_is_an_error_of_the_sample() -> None:
    row = open_task("chain_sum", SUMS).row(7)
    with pytest.raises(ValueError, match="trainer and rollouts need one release"):
        score(row | {"question": "what?"}, "7")
    with pytest.raises(ValueError, match="has no column 'reasoning_gym'"):
        score({"answer": "7"}, "7")


def test_settings_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(SpecError, match="has no group"):
        ReasoningGymScore({"extract": "answer"}, field="spec.reward.config")
