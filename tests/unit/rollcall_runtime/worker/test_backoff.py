"""The delays between attempts grow to their bound, differ between clients, and start again."""

import random

import pytest

from rollcall_runtime.worker.backoff import BackoffDelays


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, high: high)


@pytest.mark.usefixtures("no_jitter")
def test_the_bound_doubles_up_to_the_longest_delay() -> None:
    delays = BackoffDelays(first=0.1, longest=0.5)
    assert [delays.next_delay() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.usefixtures("no_jitter")
def test_a_reset_begins_the_series_again() -> None:
    delays = BackoffDelays(first=0.1, longest=0.5)
    for _ in range(4):
        delays.next_delay()
    delays.reset()
    assert [delays.next_delay() for _ in range(2)] == [0.1, 0.2]


@pytest.mark.usefixtures("no_jitter")
def test_the_series_of_two_clients_do_not_touch_each_other() -> None:
    one, other = (BackoffDelays(first=0.1, longest=0.5) for _ in range(2))
    one.next_delay()
    assert (one.next_delay(), other.next_delay()) == (0.2, 0.1)


def test_each_delay_is_random_in_the_upper_half_of_its_bound() -> None:
    first = [BackoffDelays(first=1.0, longest=8.0).next_delay() for _ in range(1000)]
    assert min(first) >= 0.5
    assert max(first) <= 1.0
    assert max(first) - min(first) > 0.4, "many clients that fail together retry at once"


def test_the_jitter_of_one_delay_does_not_shorten_the_next() -> None:
    delays = BackoffDelays(first=1.0, longest=8.0)
    for bound in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert bound / 2 <= delays.next_delay() <= bound
