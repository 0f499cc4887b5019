"""Bounds are their settings on an idle machine, and stretch with slow waits to a limit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall_protocol.membership.stretched_bounds import (
    AT_ONCE,
    DELAY_MEMORY,
    HEADROOM,
    NOTICEABLE,
    REMEMBERED,
    STRETCH_LIMIT,
    SilenceBound,
    StretchedBound,
    checked_stretch,
)

SETTING = 10.0
EVENTS = st.one_of(
    st.tuples(st.just("took"), st.floats(0, 1e6)),
    st.tuples(st.just("failed"), st.floats(0, 1e6)),
    st.tuples(st.just("passed"), st.just(0.0)),
)


def test_quick_waits_leave_the_bound_at_its_setting() -> None:
    bound = StretchedBound(SETTING)
    for _ in range(20):
        bound.took(SETTING / HEADROOM)
    assert (bound.seconds, bound.stretch) == (SETTING, 1.0)


def test_a_slow_wait_gives_the_next_ones_three_times_its_time() -> None:
    bound = StretchedBound(SETTING)
    bound.took(9.0)
    assert bound.seconds == 27.0


def test_each_wait_that_is_given_up_triples_the_bound_up_to_the_limit() -> None:
    bound, seen = StretchedBound(SETTING), []
    for _ in range(4):
        bound.passed()
        seen.append(bound.stretch)
    assert seen == [3.0, STRETCH_LIMIT, STRETCH_LIMIT, STRETCH_LIMIT]


def test_as_many_quick_waits_as_are_remembered_take_the_time_back() -> None:
    bound = StretchedBound(SETTING)
    bound.passed()
    for _ in range(REMEMBERED - 1):
        bound.took(0.1)
    assert bound.stretch == 3.0, "one slow wait is still remembered"
    bound.took(0.1)
    assert bound.stretch == 1.0


def test_what_fails_at_once_does_not_fail_for_lack_of_time() -> None:
    bound = StretchedBound(SETTING)
    assert not bound.failed(AT_ONCE - 0.01)
    assert bound.stretch == 1.0
    assert bound.failed(AT_ONCE)
    assert bound.stretch == 3.0


@given(st.floats(0.01, 3600), st.lists(EVENTS, max_size=30))
def test_no_bound_is_below_its_setting_or_beyond_the_limit(
    setting: float, events: list[tuple[str, float]]
) -> None:
    bound = StretchedBound(setting)
    for event, seconds in events:
        bound.passed() if event == "passed" else getattr(bound, event)(seconds)
        assert setting <= bound.seconds <= STRETCH_LIMIT * setting


@given(
    st.floats(0.0, SETTING * STRETCH_LIMIT),
    st.lists(EVENTS, max_size=REMEMBERED),
)
def test_what_takes_no_longer_than_the_limit_succeeds_after_few_attempts(
    needed: float, before: list[tuple[str, float]]
) -> None:
    """Slower, never still: whatever happened before, at most two attempts in a row are lost."""
    bound = StretchedBound(SETTING)
    for event, seconds in before:
        bound.passed() if event == "passed" else getattr(bound, event)(seconds)
    lost = 0
    while bound.seconds < needed:
        bound.passed()
        lost += 1
    assert lost <= 2, "a third in a row would exclude members"
    bound.took(needed)
    assert bound.seconds >= needed, "the next one as slow is not lost"


@pytest.mark.parametrize(
    ("received", "taken"),
    [(1.0, 1.0), (STRETCH_LIMIT, STRETCH_LIMIT), (0.0, 1.0), (1e9, 1.0), (math.nan, 1.0)],
)
def test_a_stretch_that_arrives_is_within_the_limit(received: float, taken: float) -> None:
    assert checked_stretch(received) == taken


def test_silence_has_its_setting_while_nothing_is_late() -> None:
    bound = SilenceBound(3.0, heartbeat=1.0)
    for now in range(100):
        bound.silent(1.0, now)
        bound.late(0.01, now)
    assert bound.seconds(100) == 3.0


def test_twice_the_delay_of_the_own_loop_is_added() -> None:
    bound = SilenceBound(3.0, heartbeat=1.0)
    bound.late(1.5, now=10)
    bound.late(0.5, now=20)
    assert bound.seconds(20) == 6.0, "the largest delay counts"


def test_of_a_peer_that_was_silent_and_lives_what_is_beyond_its_heartbeat_is_a_delay() -> None:
    bound = SilenceBound(3.0, heartbeat=1.0)
    bound.silent(4.0, now=10)
    assert bound.seconds(10) == 9.0


@given(st.floats(0.01, 100), st.floats(0.01, 1), st.floats(0, 1))
def test_a_peer_may_be_silent_again_for_as_long_as_it_was(
    setting: float, heartbeats: float, share: float
) -> None:
    """Within the limit, and whatever the heartbeat: a silence costs a session once."""
    silence = share * STRETCH_LIMIT * setting
    bound = SilenceBound(setting, heartbeat=heartbeats * setting)
    bound.silent(silence, now=0)
    assert bound.seconds(0) >= silence - NOTICEABLE


def test_a_delay_is_forgotten_after_a_while() -> None:
    bound = SilenceBound(3.0, heartbeat=1.0)
    bound.late(2.0, now=0)
    assert bound.seconds(DELAY_MEMORY) == 7.0
    assert bound.seconds(DELAY_MEMORY + 1) == 3.0


@given(
    st.floats(0.01, 3600),
    st.lists(st.tuples(st.sampled_from(["late", "silent"]), st.floats(0, 1e6), st.floats(0, 10))),
)
def test_no_silence_is_bounded_below_the_setting_or_beyond_the_limit(
    setting: float, events: list[tuple[str, float, float]]
) -> None:
    bound, now = SilenceBound(setting, heartbeat=setting / 2), 0.0
    for event, seconds, passes in events:
        now += passes
        getattr(bound, event)(seconds, now)
        assert setting <= bound.seconds(now) <= STRETCH_LIMIT * setting


@given(st.lists(st.tuples(st.floats(0.2, 5), st.floats(0, 60)), min_size=1, max_size=20))
def test_the_largest_delay_within_the_memory_counts(delays: list[tuple[float, float]]) -> None:
    bound, now, seen = SilenceBound(100.0, heartbeat=1.0), 0.0, list[tuple[float, float]]()
    for seconds, passes in delays:
        now += passes
        bound.late(seconds, now)
        seen.append((now, seconds))
        recent = max(value for time, value in seen if time >= now - DELAY_MEMORY)
        assert bound.seconds(now) == pytest.approx(100.0 + 2 * recent)
