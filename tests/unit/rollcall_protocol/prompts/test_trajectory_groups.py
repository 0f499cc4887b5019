"""Trajectories of agents: gathered into groups, each once, as samples of one prompt."""

from dataclasses import replace

import pytest

from rollcall_protocol.prompts.trajectory_groups import TrajectoryGroups, as_samples
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import ALONE, Sample
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_protocol.wire.trajectories import FinishedTrajectory, TrajectoryPart

PROMPT = (1, 5, 6)


def trajectory(
    name: str,
    *,
    group: str = "",
    prompt: tuple[int, ...] = PROMPT,
    reward: float = 1.0,
    number: int = 3,
) -> FinishedTrajectory:
    sample = Sample((7, 8), (-1.0, -2.0), (number, number), reward)
    oldest = Version(Lineage(1, 1), number)
    parts = (TrajectoryPart(prompt, sample),)
    return FinishedTrajectory("job-uid", name, group, parts, oldest)


def with_part(one: FinishedTrajectory, prompt: tuple[int, ...]) -> FinishedTrajectory:
    (part,) = one.parts
    return replace(one, parts=(part, replace(part, prompt=prompt)))


def groups(size: int = 2) -> TrajectoryGroups:
    return TrajectoryGroups(size=size, seconds=60.0)


def test_those_of_one_prompt_are_a_group() -> None:
    one = groups()
    assert one.add(trajectory("a"), 0.0) is None
    assert one.add(trajectory("b", prompt=(1, 9)), 0.0) is None
    assert one.add(trajectory("c"), 0.0) == (trajectory("a"), trajectory("c"))
    assert one.waiting == 1


def test_those_of_one_name_are_a_group_whatever_their_prompts() -> None:
    one = groups()
    assert one.add(trajectory("a", group="task-1"), 0.0) is None
    assert one.add(trajectory("b"), 0.0) is None
    whole = one.add(trajectory("c", group="task-1", prompt=(1, 9)), 0.0)
    assert whole is not None
    assert [member.trajectory for member in whole] == ["a", "c"]


def test_one_that_became_too_old_spoils_no_later_group() -> None:
    """The next round of a task would be dropped with what the last one left."""
    one = groups()
    one.add(trajectory("a", number=3), 0.0)
    assert one.expire(1.0, oldest=3) == 0
    assert one.expire(1.0, oldest=4) == 1
    assert one.add(trajectory("b", number=5), 2.0) is None
    whole = one.add(trajectory("c", number=5), 2.0)
    assert whole is not None
    assert [member.trajectory for member in whole] == ["b", "c"]


def test_the_oldest_groups_make_room_for_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcall_protocol.prompts.trajectory_groups.MOST_TOKENS", 9)
    one = groups()
    one.add(trajectory("a", group="1"), 0.0)
    assert one.expire(0.0, oldest=0) == 0, "it has 5 tokens"
    one.add(trajectory("b", group="2"), 0.0)
    assert one.expire(0.0, oldest=0) == 1
    assert one.add(trajectory("c", group="1"), 0.0) is None
    assert one.add(trajectory("d", group="2"), 0.0) is not None


def test_one_without_the_same_first_token_does_not_fit() -> None:
    one = groups()
    one.add(trajectory("a", group="task-1"), 0.0)
    assert one.fits(trajectory("b", group="task-1"))
    assert not one.fits(trajectory("b", group="task-1", prompt=(2, 5, 6)))
    assert not one.fits(with_part(trajectory("c"), (2, 5))), "its parts differ"


def test_a_trajectory_of_several_parts_is_one_of_its_group() -> None:
    one = groups()
    split = with_part(trajectory("a"), (1, 5, 9))
    assert one.add(split, 0.0) is None
    whole = one.add(trajectory("b"), 0.0)
    assert whole == (split, trajectory("b"))
    tokens, samples = as_samples(whole)
    assert tokens == (1, 5)
    assert [sample.tokens for sample in samples] == [(6, 7, 8), (9, 7, 8), (6, 7, 8)]
    assert [sample.trajectory for sample in samples] == [0, 0, ALONE]
    assert split.tokens == 10


def test_what_prompts_have_in_common_is_the_prompt_and_the_rest_is_given() -> None:
    tokens, (first, second) = as_samples(
        [trajectory("a", prompt=(1, 5, 6, 6)), trajectory("b", prompt=(1, 5, 9))]
    )
    assert tokens == (1, 5)
    assert first.tokens == (6, 6, 7, 8)
    assert first.versions == (NOT_SAMPLED, NOT_SAMPLED, 3, 3)
    assert first.logprobs == (0.0, 0.0, -1.0, -2.0)
    assert second.tokens == (9, 7, 8)


def test_the_same_prompt_is_given_whole() -> None:
    tokens, samples = as_samples([trajectory("a"), trajectory("b", reward=0.0)])
    assert tokens == PROMPT
    assert [sample.tokens for sample in samples] == [(7, 8), (7, 8)]
    assert [sample.reward for sample in samples] == [1.0, 0.0]


@pytest.mark.parametrize(
    "prompts",
    [
        ((1,), (1, 2)),
        ((1, 2), (1,)),
        ((1, 2, 3), (1, 2, 4), (1,)),
        ((1, 2, 3), (1, 2, 4), (1, 5, 6)),
    ],
)
def test_a_shorter_prompt_is_what_they_have_in_common(prompts: tuple[tuple[int, ...], ...]) -> None:
    tokens, _ = as_samples([trajectory(str(at), prompt=p) for at, p in enumerate(prompts)])
    assert tokens == (1,)


def test_one_is_known_once_it_was_added_and_after_a_restart_if_its_group_was_whole() -> None:
    one = groups()
    for name in ("a", "b", "c"):
        assert not one.knows(name)
        one.add(trajectory(name), 0.0)
        assert one.knows(name)
    assert one.counted == ("a", "b")
    after = TrajectoryGroups(size=2, seconds=60.0, known=one.counted)
    assert after.knows("a")
    assert not after.knows("c"), "its group was lost, so it may count again"


def test_the_newest_in_whole_groups_are_known_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollcall_protocol.prompts.trajectory_groups.MOST_KNOWN", 2)
    one = groups(size=1)
    for name in ("a", "b", "c"):
        one.add(trajectory(name), 0.0)
    assert one.counted == ("b", "c")


def test_the_time_of_a_group_counts_from_its_first_trajectory() -> None:
    one = groups(size=3)
    one.add(trajectory("a"), 0.0)
    one.add(trajectory("b"), 50.0)
    assert one.expire(60.0, oldest=0) == 2


def test_a_group_that_stays_incomplete_expires() -> None:
    one = groups()
    one.add(trajectory("a"), 0.0)
    one.add(trajectory("b", group="later"), 30.0)
    assert one.expire(59.0, oldest=0) == 0
    assert one.expire(60.0, oldest=0) == 1
    assert one.waiting == 1
