"""Three bad messages within a minute exclude a pod, and so does a flood; less does not."""

from rollcall_protocol.membership.bad_messages import (
    BURST_MESSAGES,
    MESSAGES_PER_SECOND,
    WINDOW_SECONDS,
    BadMessageCounter,
    message_allowance,
)


def test_the_third_within_the_window_excludes_once() -> None:
    counter = BadMessageCounter()
    assert [counter.add("a", now) for now in (0, 1, 2, 3)] == [False, False, True, False]
    assert counter.excluded == {"a"}


def test_those_of_another_pod_or_of_long_ago_do_not_count() -> None:
    counter = BadMessageCounter()
    assert not any(counter.add(pod, 0) for pod in "aabb")
    assert not counter.add("a", WINDOW_SECONDS + 1)
    assert not counter.add("a", WINDOW_SECONDS + 2)
    assert counter.add("a", WINDOW_SECONDS + 3)


def test_pods_that_are_gone_are_forgotten() -> None:
    counter = BadMessageCounter()
    for now in (0, 1, 2):
        counter.add("a", now)
    counter.add("b", 0)
    counter.keep_only({"c"})
    assert counter.excluded == set()
    assert not counter.add("b", 1)
    assert not counter.add("b", 2)


def test_a_member_may_send_at_the_rate_for_ever() -> None:
    rate = message_allowance(0.0)
    assert all(rate.take(n / MESSAGES_PER_SECOND) for n in range(3 * BURST_MESSAGES))


def test_of_messages_at_once_only_a_bounded_number_counts() -> None:
    rate = message_allowance(0.0)
    assert sum(rate.take(0.0) for _ in range(2 * BURST_MESSAGES)) == BURST_MESSAGES


def test_a_silence_gives_back_no_more_than_the_bound() -> None:
    rate = message_allowance(0.0)
    assert sum(rate.take(1e6) for _ in range(2 * BURST_MESSAGES)) == BURST_MESSAGES
