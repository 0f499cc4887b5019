"""What the front keeps of agents' trajectories, and the sample that each becomes."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall_plugins.front.openai.trajectories import (
    RecordedCompletion,
    Trajectory,
    TrajectoryRecords,
    UntrainableError,
)
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.trajectories import Digest


def completion(
    prompt: tuple[int, ...], *tokens: int, number: int = 3, usual: bool = True
) -> RecordedCompletion:
    response = Response(tokens, (-0.5,) * len(tokens), (number,) * len(tokens), finished=True)
    return RecordedCompletion(prompt, response, Version(Lineage(1, 1), number), usual)


def trajectory(*completions: RecordedCompletion) -> Trajectory:
    made = Trajectory("t")
    for one in completions:
        made.add(one)
    return made


def records(*, most: int = 10, most_tokens: int = 1000, seconds: float = 60.0) -> TrajectoryRecords:
    return TrajectoryRecords(most=most, most_tokens=most_tokens, seconds=seconds)


def known(one: TrajectoryRecords, *names: str) -> list[str]:
    return [name for name in names if one.find(name).count]


def test_one_completion_is_a_prompt_and_what_was_sampled() -> None:
    prompt, sample, oldest = trajectory(completion((1, 2), 7, 8)).sample(0.5)
    assert prompt == (1, 2)
    assert (sample.tokens, sample.versions, sample.reward) == ((7, 8), (3, 3), 0.5)
    assert oldest.number == 3


def test_what_the_agent_adds_between_its_requests_is_given() -> None:
    prompt, sample, oldest = trajectory(
        completion((1, 2), 7, 8), completion((1, 2, 7, 8, 4, 4), 9, number=5)
    ).sample(1.0)
    assert prompt == (1, 2)
    assert sample.tokens == (7, 8, 4, 4, 9)
    assert sample.versions == (3, 3, NOT_SAMPLED, NOT_SAMPLED, 5)
    assert sample.logprobs == (-0.5, -0.5, 0.0, 0.0, -0.5)
    assert oldest.number == 3


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (completion((1, 2, 7), 9), "completion 1"),  # a token of the response is missing
        (completion((1, 2, 6, 8, 4), 9), "completion 1"),  # other tokens say the same text
        (completion((1, 2), 9), "completion 1"),  # another answer to the same prompt
        (completion((1, 2, 7, 8), 9, usual=False), "temperature"),
    ],
)
def test_what_is_not_one_sequence_is_refused_with_the_reason(
    second: RecordedCompletion, reason: str
) -> None:
    with pytest.raises(UntrainableError, match=reason):
        trajectory(completion((1, 2), 7, 8), second).sample(1.0)


def test_the_longest_idle_are_forgotten_beyond_the_number() -> None:
    one = records(most=2)
    for at, name in enumerate(("a", "b", "a", "c")):
        one.record(name, completion((1,), 7), float(at))
    assert known(one, "a", "b", "c") == ["a", "c"]


def test_the_longest_idle_are_forgotten_beyond_the_tokens() -> None:
    one = records(most_tokens=7)
    one.record("a", completion((1, 2), 7), 0.0)
    one.record("b", completion((1, 2), 7), 1.0)
    one.record("c", completion((1, 2), 7), 2.0)
    assert known(one, "a", "b", "c") == ["b", "c"]
    one.end("b")
    one.record("d", completion((1, 2), 7), 3.0)
    assert known(one, "c", "d") == ["c", "d"], "what ended needs no room"


def test_a_trajectory_of_many_turns_needs_room_for_each_token_once() -> None:
    one = records(most_tokens=100)
    one.record("b", completion((1,), 7), 0.0)
    sequence: tuple[int, ...] = (1, 2)
    for turn in range(20):
        one.record("a", completion(sequence, 7, 8), float(turn))
        sequence = (*sequence, 7, 8, 4)
    assert known(one, "a", "b") == ["a", "b"]
    found = one.find("a")
    assert found.tokens == len(sequence) - 1, "the last answer is not followed by anything"
    prompt, sample, _ = found.sample(1.0)
    assert (*prompt, *sample.tokens, 4) == sequence


def test_of_what_is_not_one_sequence_the_last_is_kept() -> None:
    one = records(most_tokens=8)
    one.record("a", completion((1, 2), 7, 8), 0.0)
    one.record("a", completion((5, 5), 7, 8), 1.0)
    one.record("b", completion((1, 2), 7, 8), 2.0)
    found = one.find("a")
    assert found.sequence() == (5, 5, 7, 8)
    with pytest.raises(UntrainableError, match="completion 1"):
        found.sample(1.0)


def test_the_idle_are_forgotten_after_their_time() -> None:
    one = records(seconds=10.0)
    one.record("a", completion((1,), 7), 0.0)
    one.record("b", completion((1,), 7), 9.9)
    assert known(one, "a", "b") == ["a", "b"]
    one.record("b", completion((1, 7), 7), 10.0)
    assert known(one, "a", "b") == ["b"]


def test_the_time_counts_from_the_last_answer() -> None:
    one = records(seconds=10.0)
    one.record("a", completion((1, 2), 7), 1.0)
    one.record("a", completion((1, 2, 7), 8), 6.0)
    one.record("b", completion((1,), 7), 15.9)
    assert known(one, "a", "b") == ["a", "b"]
    one.record("b", completion((1, 7), 7), 16.0)
    assert known(one, "a", "b") == ["b"]


def test_a_name_is_not_used_again() -> None:
    one = records()
    one.record("a", completion((1,), 7), 0.0)
    assert not one.has_ended("a")
    one.end("a")
    assert one.has_ended("a")
    assert known(one, "a") == []


@pytest.mark.parametrize(
    "prompts",
    [
        ((1, 2), (1, 2, 7, 8, 4), (1, 2, 7, 8, 4, 7, 8)),
        ((1, 2), (1, 2, 6, 8, 4), (5, 5)),  # what does not go on, too
        ((1, 2), (1,), (1, 2)),
    ],
)
def test_another_pod_learns_a_trajectory_by_its_turns(prompts: tuple[tuple[int, ...], ...]) -> None:
    own, other = Trajectory("t"), Trajectory("t")
    for number, prompt in enumerate(prompts):
        answer = replace(completion(prompt, 7, 8), end="</s>", said=Digest(number + 1, "ab"))
        turn = own.turn(answer, job_uid="uid", seconds=60.0)
        assert len(turn.given) < len(prompt) or not turn.known, "no token is sent twice"
        own.add(answer)
        learnt = other.completion(turn)
        assert learnt == answer
        other.add(learnt)
        assert (
            (other.sequence(), other.count)
            == (own.sequence(), own.count)
            == (
                (*prompt, 7, 8),
                number + 1,
            )
        )
        assert (other.said, other.end) == (answer.said, "</s>")


@pytest.mark.parametrize("changes", [{"number": 2}, {"known": 5}, {"known": -1}], ids=str)
def test_a_turn_that_does_not_follow_is_not_learnt(changes: dict[str, Any]) -> None:
    own = trajectory(completion((1, 2), 7, 8))
    turn = own.turn(completion((1, 2, 7, 8, 4), 9), job_uid="uid", seconds=60.0)
    with pytest.raises(ValueError, match="does not follow"):
        own.completion(replace(turn, **changes))
