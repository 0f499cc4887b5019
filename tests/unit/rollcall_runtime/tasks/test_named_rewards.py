"""Rewards on text: built in by name, a user's own, and weighted sums of them."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from rollcall_protocol.job_config import RewardPart, RewardScoringConfig
from rollcall_runtime.tasks.builtin_rewards import patterns
from rollcall_runtime.tasks.builtin_rewards.answer_column import answer_in
from rollcall_runtime.tasks.reward_function import (
    RewardFunction,
    UnusableRewardError,
    load_reward,
    load_sum,
)
from rollcall_runtime.tasks.reward_text import ResponseText, warn_of_unseen_tags
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import job_config

WORDS = ("<end>", "the", "answer", "is", "Four", "four", "five")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a model whose tokenizer has WORDS, the first of which is special."""
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def tokens(text: str) -> tuple[int, ...]:
    return tuple(WORDS.index(word) for word in text.split())


@pytest.mark.parametrize(
    ("config", "response", "reward"),
    [
        ({}, "four", 1.0),
        ({}, "four <end>", 1.0),
        ({"column": "spaced"}, "four", 1.0),
        ({"column": "spaced", "strip": False}, "four", 0.0),
        ({}, "Four", 0.0),
        ({"lowerCase": True}, "Four", 1.0),
        ({}, "the answer is four", 0.0),
        ({"extract": r"is (\w+)"}, "the answer is four", 1.0),
        ({"extract": r"is (\w+)"}, "is five is four", 1.0),
        ({"extract": r"is (\w+)"}, "is four is five", 0.0),
        ({"extract": r"is (\w+)"}, "four", 0.0),
        ({"extract": r"is( \w+)", "strip": False}, "is four", 0.0),
        ({"column": "other"}, "five", 1.0),
    ],
)
def test_exact_match_compares_with_a_column_of_the_row(
    directory: Path, config: dict[str, Any], response: str, reward: float
) -> None:
    score = load_reward("exact-match", config, directory=directory)
    row = {"answer": "four", "other": "five", "spaced": " four "}
    assert score((1,), tokens(response), row) == reward


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ({"ground_truth": "four"}, "{'ground_truth': 'four'}"),
        (["four"], r"['four']"),
        (float("nan"), "nan"),
    ],
)
def test_an_answer_that_no_response_can_equal_is_an_error(
    directory: Path, value: Any, shown: str
) -> None:
    score = load_reward("exact-match", directory=directory)
    problem = re.escape(f"'answer' holds {shown}; the answer must be a text or a number")
    with pytest.raises(UnusableRewardError, match=problem):
        score((1,), tokens("four"), {"answer": value})


@pytest.mark.parametrize(
    ("answer", "text"), [(4.0, "4"), (4, "4"), (-4.0, "-4"), (0.5, "0.5"), (1e300, "1e+300")]
)
def test_a_whole_number_of_a_table_is_written_without_a_point(answer: float, text: str) -> None:
    """A table holds 4 as 4.0 in a column that other rows lack."""
    assert answer_in({"answer": answer}, "answer") == text


def test_a_column_may_be_a_path_into_objects(directory: Path) -> None:
    score = load_reward("exact-match", {"column": "reward_model.truth"}, directory=directory)
    nested = {"reward_model": {"truth": "four"}}
    assert score((1,), tokens("four"), nested) == 1.0
    assert score((1,), tokens("five"), nested) == 0.0
    assert score((1,), tokens("five"), {"reward_model.truth": "five", **nested}) == 1.0
    for row, problem in (
        ({"reward_model": {"style": "rule"}}, "'reward_model' has no 'truth'; it has: style"),
        ({"reward_model": "four"}, "'reward_model' holds 'four', in which there is no 'truth'"),
    ):
        with pytest.raises(UnusableRewardError, match=problem):
            score((1,), tokens("four"), row)


def test_exact_match_says_which_column_is_lacking(directory: Path) -> None:
    score = load_reward("exact-match", directory=directory)
    with pytest.raises(UnusableRewardError, match="the row has no column 'answer'; it has: a, b"):
        score((1,), (1,), {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("config", "response", "reward"),
    [
        ({"pattern": "is f"}, "answer is four", 1.0),
        ({"pattern": "is F"}, "answer is four", 0.0),
        ({"pattern": "is f", "whole": True}, "answer is four", 0.0),
        ({"pattern": ".*is f.*", "whole": True}, "answer is four", 1.0),
    ],
)
def test_regex_matches_the_response(
    directory: Path, config: dict[str, Any], response: str, reward: float
) -> None:
    assert load_reward("regex", config, directory=directory)((1,), tokens(response)) == reward


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("regex", {"pattern": r"^((the ?)+)+$"}),
        ("exact-match", {"extract": r"^((the ?)+)+$"}),
    ],
)
def test_a_response_at_which_a_pattern_takes_too_long_does_not_match(
    directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: dict[str, Any]
) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.05)
    score = load_reward(name, config, directory=directory)
    assert score((1,), tokens("the " * 60 + "four"), {"answer": "four"}) == 0
    assert score((1,), tokens("the"), {"answer": "the"}) == 1


def test_a_call_s_own_time_bounds_a_pattern(directory: Path) -> None:
    score = load_reward("regex", {"pattern": r"^((the ?)+)+$"}, directory=directory, seconds=0.1)
    began = time.process_time()
    assert score((1,), tokens("the " * 60 + "four")) == 0
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        ("exact-match", {"colum": "a"}, ".colum: unknown setting; known: column, extract"),
        ("exact-match", {"strip": "yes"}, ".strip: 'yes' is not of type bool"),
        ("exact-match", {"column": ""}, ": column must not be empty"),
        ("exact-match", {"extract": "is .*"}, ": extract 'is .*' has no group"),
        ("regex", {}, ": pattern must be given"),
        ("regex", {"pattern": "("}, ": pattern '(' is no regular expression"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_field(
    directory: Path, name: str, config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape('spec.reward.config' + problem)}"):
        load_reward(name, config, directory=directory)


def test_a_function_gets_text_by_the_names_of_its_parameters(directory: Path) -> None:
    seen: list[tuple[str, str]] = []

    def score(prompt: object, response: object, prompt_text: str, response_text: str) -> float:
        seen.append((prompt_text, response_text))
        return 1.0

    function = RewardFunction(score, "m:score", directory=directory)
    assert function(tokens("the answer <end>"), tokens("four <end>")) == 1.0
    assert seen == [("the answer <end>", "four")]


@pytest.mark.parametrize("text", [None, "not JSON"])
def test_text_needs_a_tokenizer(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    problem = "the reward needs text, and .* has no tokenizer.json" if text is None else "cannot"
    with pytest.raises(SpecError, match=f"^spec.reward.function: {problem}"):
        load_reward("exact-match", directory=tmp_path)


def test_a_built_in_model_has_no_text() -> None:
    with pytest.raises(SpecError, match="the job's model is built in and has no text"):
        load_reward("exact-match")


def test_a_sum_adds_its_parts_times_their_weights(directory: Path) -> None:
    parts = [
        RewardPart("right", "exact-match", config={"extract": r"is (\w+)"}),
        RewardPart("form", "regex", 0.25, {"pattern": "^the"}),
    ]
    total = load_sum(parts, directory=directory)
    assert total((1,), tokens("the answer is four"), {"answer": "four"}) == 1.25
    assert total((1,), tokens("the answer is five"), {"answer": "four"}) == 0.25
    with pytest.raises(UnusableRewardError, match=r"part right: ValueError: .*no column 'answer'"):
        total((1,), (1,), {})


def test_an_error_names_the_part(directory: Path) -> None:
    parts = [RewardPart("a", "exact-match"), RewardPart("b", "regex")]
    with pytest.raises(SpecError, match=r"^spec.reward.parts\[1\].config: pattern must be given"):
        load_sum(parts, directory=directory)
    with pytest.raises(SpecError, match=r"^spec.reward.parts\[0\].function: unknown reward 'x'"):
        load_sum([RewardPart("a", "x")], directory=directory)


def test_environment_is_what_its_steps_gave_without_any_text() -> None:
    reward = load_reward("environment")
    assert reward((1,), (2,), {}, 0.75) == 0.75
    assert reward((1,), (2,)) == 0.0
    parts = [RewardPart("game", "environment", 2.0), RewardPart("none", "environment", 0.0)]
    assert load_sum(parts, directory=None)((1,), (2,), {}, 0.75) == 1.5


TAGGED = "<answer>(.*?)</answer>"


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    """Of a model whose tokenizer holds <answer>, </answer> and <end> for special tokens."""
    words = ("<end>", "<answer>", "</answer>", "four", ".")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in words[:3]])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize(("keep", "reward"), [(True, 1.0), (False, 0.0)])
def test_tags_that_are_special_tokens_are_seen_where_these_are_kept(
    tagged: Path, keep: bool, reward: float
) -> None:
    text = ResponseText(frozenset({0}), keep)
    score = load_reward("exact-match", {"extract": TAGGED}, directory=tagged, text=text)
    assert score((3,), (1, 3, 2, 0), {"answer": "four"}) == reward
    parts = [RewardPart("right", "exact-match", config={"extract": TAGGED})]
    whole = load_sum(parts, directory=tagged, text=text)
    assert whole((3,), (1, 3, 2, 0), {"answer": "four"}) == reward


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("end", "response"), [(0, (3, 0)), (4, (3, 4)), (4, (3,))])
def test_a_response_is_seen_without_the_token_that_ended_it(
    tagged: Path, keep: bool, end: int, response: tuple[int, ...]
) -> None:
    text = ResponseText(frozenset({end}), keep)
    score = load_reward("exact-match", {"strip": False}, directory=tagged, text=text)
    assert score((3,), response, {"answer": "four"}) == 1.0


def test_an_end_token_within_a_response_is_seen(tagged: Path) -> None:
    text = ResponseText(frozenset({4}))
    score = load_reward("regex", {"pattern": "four .* four"}, directory=tagged, text=text)
    assert score((3,), (3, 4, 3, 4), {}) == 1.0


@pytest.mark.parametrize(
    ("scoring", "warned"),
    [
        (RewardScoringConfig({"extract": TAGGED}), "spec.reward.config.extract"),
        (RewardScoringConfig({"extract": r"\<answer\>(.*)"}), "spec.reward.config.extract"),
        (RewardScoringConfig({"extract": "is (.*)"}), ""),
        (RewardScoringConfig({"extract": TAGGED}, keep_special_tokens=True), ""),
        (
            RewardScoringConfig(
                parts=(
                    RewardPart("right", "exact-match"),
                    RewardPart("form", "regex", config={"pattern": "<answer>"}),
                )
            ),
            "spec.reward.parts[1].config.pattern",
        ),
    ],
)
def test_a_pattern_with_a_tag_that_is_left_out_is_warned_of(
    tagged: Path, caplog: pytest.LogCaptureFixture, scoring: RewardScoringConfig, warned: str
) -> None:
    job = job_config(reward_function="exact-match", reward_scoring=scoring)
    warn_of_unseen_tags(job, tagged)
    warn_of_unseen_tags(job, None)
    found = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in found] == ([warned] if warned else [])
    assert all("asks for <answer>" in text for text in found)
    assert all("set spec.reward.keepSpecialTokens to true" in text for text in found)
