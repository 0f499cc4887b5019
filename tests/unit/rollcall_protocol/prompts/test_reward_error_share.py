"""A share of reward errors counts once enough samples say so, on more than one rollout."""

import pytest

from rollcall_protocol.prompts.reward_error_share import LEAST, WINDOW, RewardErrorShare


def counted(**windows: tuple[int, int]) -> RewardErrorShare:
    """Rollouts with failed and scored samples."""
    share = RewardErrorShare()
    for pod, (failed, scored) in windows.items():
        share.count(pod, scored=scored, failed=failed)
    return share


@pytest.mark.parametrize(
    ("failed", "scored", "exceeded"),
    [
        (LEAST - 1, LEAST - 1, False),
        (LEAST, LEAST, True),
        (LEAST, 10 * LEAST, False),
        (LEAST + 1, 10 * LEAST, True),
        (0, 100, False),
    ],
)
def test_of_one_rollout(failed: int, scored: int, exceeded: bool) -> None:
    assert counted(a=(failed, scored)).exceeds(0.1) is exceeded


def test_a_share_of_one_is_never_exceeded() -> None:
    assert not counted(a=(100, 100)).exceeds(1.0)


@pytest.mark.parametrize(
    ("windows", "exceeded"),
    [
        ({"a": (50, 50), "b": (0, 50)}, False),
        ({"a": (50, 50), "b": (20, 200)}, False),
        ({"a": (50, 50), "b": (21, 200)}, True),
        ({"a": (50, 50), "b": (LEAST - 1, LEAST - 1)}, False),
        ({"a": (90, 90), "b": (22, 110), "c": (0, 200)}, False),
        ({"a": (9, 50), "b": (9, 50), "c": (9, 50), "d": (9, 50)}, True),
    ],
)
def test_one_rollout_alone_does_not_decide_beside_others(
    windows: dict[str, tuple[int, int]], exceeded: bool
) -> None:
    assert counted(**windows).exceeds(0.1) is exceeded


def test_a_rollout_that_has_scored_nothing_is_waited_for_while_it_is_connected() -> None:
    share = counted(a=(50, 50))
    share.connected("b")
    assert not share.exceeds(0.1)
    share.disconnected("b")
    assert share.exceeds(0.1)


def test_an_error_is_confirmed_by_a_second_rollout_or_where_there_is_no_other() -> None:
    share = counted(a=(5, 50))
    assert share.confirmed()
    share.connected("b")
    assert not share.confirmed()
    share.count("a", scored=50, failed=50)
    assert not share.confirmed()
    share.count("b", scored=1, failed=1)
    assert share.confirmed()


def test_an_error_counts_until_its_rollout_is_gone() -> None:
    share = counted(a=(1, 1), b=(0, WINDOW), c=(0, 1))
    share.count("a", scored=WINDOW, failed=0)
    share.count("b", scored=1, failed=1)
    assert share.confirmed(), "however long ago"
    share.disconnected("a")
    assert not share.confirmed()
    share.disconnected("b")
    share.disconnected("c")
    assert not share.confirmed(), "without a rollout there is no word of any"


def test_only_the_last_samples_count() -> None:
    share = counted(a=(50, 50))
    for _ in range(WINDOW):
        share.count("a", scored=1, failed=0)
    assert share.counted() == (0, WINDOW)
    share.count("a", scored=1, failed=1)
    assert share.counted() == (1, WINDOW)
