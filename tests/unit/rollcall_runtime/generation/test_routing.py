"""Which rollout a request goes to."""

import pytest

from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.generation import routing
from rollcall_runtime.generation.routing import AVOID_SECONDS, BLOCK, SLACK, RequestRoutes

A, B, C = (ServingRollout(f"cpu-{i}", f"127.0.0.{i}:7072", "ticket") for i in range(3))
LONG = tuple(range(2 * BLOCK + 3))


def routes(*rollouts: ServingRollout) -> RequestRoutes:
    found = RequestRoutes()
    found.replace(ServingRollouts(rollouts))
    return found


def test_requests_without_a_common_beginning_are_spread() -> None:
    one = routes(A, B)
    chosen = [one.choose((number,), 0.0) for number in range(6)]
    assert chosen.count(A) == chosen.count(B) == 3


def test_idle_rollouts_take_turns() -> None:
    one, chosen = routes(A, B), []
    for number in range(4):
        found = one.choose((number,), 0.0)
        assert found is not None
        one.ended(found)
        chosen.append(found)
    assert chosen.count(A) == chosen.count(B) == 2


def test_the_least_busy_is_the_one_where_the_fewest_run_now() -> None:
    one = routes(A, B)
    assert one.choose((1,), 0.0) == A, "it runs on"
    for number in range(3):
        assert one.choose((number,), 0.0) == B
        one.ended(B)


def test_a_conversation_goes_on_where_it_was() -> None:
    one = routes(A, B)
    first = one.choose(LONG, 0.0)
    assert first is not None
    one.ended(first)
    for _ in range(3):
        assert one.choose((*LONG, 1, 2, 3), 0.0) == first


def test_a_conversation_of_many_turns_that_ended_stays_where_it_is() -> None:
    one = routes(A, B)
    for _ in range(3 * SLACK):
        assert one.choose(LONG, 0.0) == A
        one.ended(A)


def test_a_conversation_that_had_to_move_stays_where_it_went() -> None:
    one = routes(A, B)
    for without in (B, A):
        assert one.choose(LONG, 0.0, without={without.address}) not in {None, without}
    assert [one.choose(LONG, 0.0) for _ in range(3)] == [B, B, B]


def test_the_longest_beginning_in_a_cache_counts() -> None:
    one = routes(A, B)
    other = (*LONG[:BLOCK], *reversed(LONG[BLOCK:]))
    assert one.choose(LONG, 0.0) == A
    assert one.choose(other, 0.0, without={A.address}) == B, "the shared block is in both caches"
    assert one.choose(LONG, 0.0) == A
    assert one.choose(other, 0.0) == B


def test_another_beginning_is_no_conversation() -> None:
    one = routes(A, B)
    assert one.choose(LONG, 0.0) != one.choose((9, *LONG[1:]), 0.0)


def test_the_beginnings_that_were_not_asked_for_longest_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "MOST_BLOCKS", 2)
    one, (first, second, third) = routes(A, B), [(start,) * BLOCK for start in range(3)]

    def ask(prompt: tuple[int, ...], *, without: ServingRollout) -> None:
        found = one.choose(prompt, 0.0, without={without.address})
        assert found is not None
        one.ended(found)

    ask(first, without=B)
    ask(second, without=A)
    ask(first, without=B)
    ask(third, without=A)
    ask((8,), without=B)  # so that B is the one for a beginning of none
    assert one.choose(first, 0.0) == A
    for _ in range(4):
        ask((8,), without=A)  # and now A
    one.ended(A)
    assert one.choose(second, 0.0) == A


def test_a_clearly_busier_rollout_loses_its_conversations() -> None:
    one = routes(A, B)
    chosen = [one.choose(LONG, 0.0) for _ in range(SLACK + 2)]
    assert len(set(chosen[:-1])) == 1
    assert chosen[-1] != chosen[0]


def test_clearly_busier_is_half_as_many_again_and_4_more() -> None:
    one = routes(A, B)
    for number in range(2 * 4):
        one.choose((number,), 0.0)  # 4 at each
    chosen = [one.choose(LONG, 0.0) for _ in range(8)]
    # 1.5 * 4 + 4 are not clearly more than 4, so the one that finds 10 there comes as well.
    assert chosen == [A] * 7 + [B]


def test_a_rollout_that_failed_is_avoided_for_a_while() -> None:
    one = routes(A, B)
    one.failed(A, 10.0)
    assert {one.choose((number,), 10.1) for number in range(4)} == {B}
    one.failed(B, 10.1)
    assert one.choose((1,), 10.2) is None
    assert one.choose((1,), 10.0 + AVOID_SECONDS) == A


def test_a_request_can_be_kept_from_rollouts() -> None:
    one = routes(A, B)
    assert [one.choose(LONG, 0.0, without={A.address}) for _ in range(3)] == [B, B, B]
    assert one.choose(LONG, 0.0, without={A.address, B.address}) is None


def test_a_new_ticket_ends_the_avoidance() -> None:
    one = routes(A)
    one.failed(A, 10.0)
    again = ServingRollout(A.pod, A.address, "of a new stream")
    one.replace(ServingRollouts((again,)))
    assert one.choose((1,), 10.1) == again


def test_a_rollout_that_left_gets_nothing() -> None:
    one = routes(A, B, C)
    one.choose(LONG, 0.0)
    one.replace(ServingRollouts((C,)))
    assert one.choose(LONG, 0.0) == C
    one.replace(ServingRollouts())
    assert one.choose(LONG, 0.0) is None
