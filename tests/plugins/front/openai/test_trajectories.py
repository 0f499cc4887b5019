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
from rollcall_protocol.wire.trajectories import MOST_PARTS, Digest


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
    (part,), oldest = trajectory(completion((1, 2), 7, 8)).parts(0.5)
    sample = part.sample
    assert part.prompt == (1, 2)
    assert (sample.tokens, sample.versions, sample.reward) == ((7, 8), (3, 3), 0.5)
    assert oldest.number == 3


def test_what_the_agent_adds_between_its_requests_is_given() -> None:
    (part,), oldest = trajectory(
        completion((1, 2), 7, 8), completion((1, 2, 7, 8, 4, 4), 9, number=5)
    ).parts(1.0)
    sample = part.sample
    assert part.prompt == (1, 2)
    assert sample.tokens == (7, 8, 4, 4, 9)
    assert sample.versions == (3, 3, NOT_SAMPLED, NOT_SAMPLED, 5)
    assert sample.logprobs == (-0.5, -0.5, 0.0, 0.0, -0.5)
    assert oldest.number == 3


@pytest.mark.parametrize(
    "second",
    [
        (1, 2, 7),  # a token of the response is missing
        (1, 2, 6, 8, 4),  # other tokens say the same text
        (1, 2),  # another answer to the same prompt
        (5,),
    ],
    ids=str,
)
def test_what_does_not_go_on_is_a_sample_of_its_own(second: tuple[int, ...]) -> None:
    made = trajectory(
        completion((1, 2), 7, 8, number=5),
        completion(second, 9),
        completion((*second, 9, 4), 6, number=4),
    )
    (first, other), oldest = made.parts(0.5)
    assert (first.prompt, first.sample.tokens, first.sample.versions) == ((1, 2), (7, 8), (5, 5))
    assert (other.prompt, other.sample.tokens) == (second, (9, 4, 6))
    assert other.sample.versions == (3, NOT_SAMPLED, 4)
    assert other.sample.logprobs == (-0.5, 0.0, -0.5)
    assert (first.sample.reward, other.sample.reward, oldest.number) == (0.5, 0.5, 3)
    assert made.tokens == 4 + len(second) + 3


def test_what_was_sampled_in_another_way_is_refused_with_the_reason() -> None:
    second = completion((1, 2, 7, 8), 9, usual=False)
    with pytest.raises(UntrainableError, match=r"completion 1 .* temperature"):
        trajectory(completion((1, 2), 7, 8), second).parts(1.0)


def test_a_trajectory_has_a_bounded_number_of_samples() -> None:
    made = trajectory(*(completion((at,), 7) for at in range(MOST_PARTS)))
    assert len(made.parts(1.0)[0]) == MOST_PARTS
    made.add(completion((MOST_PARTS,), 7))
    with pytest.raises(UntrainableError, match=f"more than {MOST_PARTS} of its prompts"):
        made.parts(1.0)


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
    (part,), _ = found.parts(1.0)
    assert (*part.prompt, *part.sample.tokens, 4) == sequence


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
