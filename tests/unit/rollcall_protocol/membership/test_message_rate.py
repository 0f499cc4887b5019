"""A flood of messages is found; what an honest member sends at most is none."""

from rollcall_protocol.membership.message_rate import (
    BURST_MESSAGES,
    MESSAGES_PER_SECOND,
    MessageRate,
)


def test_a_member_may_send_at_the_rate_for_ever() -> None:
    rate = MessageRate(0.0)
    assert all(rate.take(n / MESSAGES_PER_SECOND) for n in range(3 * BURST_MESSAGES))


def test_of_messages_at_once_only_a_bounded_number_counts() -> None:
    rate = MessageRate(0.0)
    assert sum(rate.take(0.0) for _ in range(2 * BURST_MESSAGES)) == BURST_MESSAGES


def test_a_silence_gives_back_no_more_than_the_bound() -> None:
    rate = MessageRate(0.0)
    assert sum(rate.take(1e6) for _ in range(2 * BURST_MESSAGES)) == BURST_MESSAGES
