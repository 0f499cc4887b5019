"""How long a step should take on a machine whose speed the finished steps show."""

import pytest

from hack.usual_time import MachineSpeed, duration

USUAL_S = 520.0


def speed(*steps: tuple[float, float]) -> MachineSpeed:
    """After steps of these usual and measured seconds."""
    found = MachineSpeed()
    for usual_s, took_s in steps:
        found.finished(usual_s=usual_s, took_s=took_s)
    return found


def test_before_any_step_is_done_the_usual_time_is_expected() -> None:
    assert speed().factor() == 1
    assert speed().expected(USUAL_S) == "usually 8 min 40 s"


def test_a_long_step_says_more_of_the_machine_than_a_short_one() -> None:
    assert speed((10, 40), (90, 160)).factor() == 2


def test_a_slow_machine_and_a_fast_one_are_expected_to_stay_so() -> None:
    assert speed((60, 138)).expected(USUAL_S) == (
        "about 20 min on this machine, usually 8 min 40 s"
    )
    assert speed((60, 30)).expected(60) == "about 30 s on this machine, usually 1 min 00 s"


def test_a_small_difference_is_no_other_speed() -> None:
    assert speed((60, 65)).expected(USUAL_S) == "usually 8 min 40 s"


def test_a_step_that_found_its_work_done_says_nothing() -> None:
    assert speed((60, 120), (90, 1)).factor() == 2


@pytest.mark.parametrize(
    ("before", "took_s", "says"),
    [
        (speed(), 30, "30 s of usually 8 min 40 s"),
        (speed(), 720, "12 min 00 s, longer than expected: usually 8 min 40 s"),
        (
            speed((60, 138)),
            720,
            "12 min 00 s of about 20 min on this machine, usually 8 min 40 s",
        ),
        (
            speed((60, 138)),
            1620,
            "27 min 00 s, longer than expected: about 20 min on this machine, usually 8 min 40 s",
        ),
    ],
)
def test_a_step_that_runs_longer_than_expected_says_so(
    before: MachineSpeed, took_s: float, says: str
) -> None:
    assert before.so_far(took_s, USUAL_S) == says


def test_durations_are_read_in_minutes_from_a_minute_on() -> None:
    assert [duration(seconds) for seconds in (7.4, 59.4, 60, 520)] == [
        "7 s",
        "59 s",
        "1 min 00 s",
        "8 min 40 s",
    ]
