"""What the coordinator keeps of trajectories without a reward, for all pods of the front."""

from dataclasses import replace

import pytest

from rollcall_protocol.prompts import kept_turns
from rollcall_protocol.prompts.kept_turns import KeptTurns
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.trajectories import Digest, TrajectoryTurn, TurnVerdict

KEPT, BEHIND, BAD, ENDED, LOST = (
    TurnVerdict.KEPT,
    TurnVerdict.BEHIND,
    TurnVerdict.BAD_TURN,
    TurnVerdict.ENDED,
    TurnVerdict.LOST,
)


def turn(
    name: str = "t", number: int = 0, *, known: int = 0, seconds: float = 60
) -> TrajectoryTurn:
    return TrajectoryTurn(
        job_uid="uid",
        trajectory=name,
        number=number,
        known=known,
        given=(1, 2),
        response=Response((7,), (-0.5,), (3,), finished=True),
        oldest=Version(Lineage(1, 1), 3),
        usual=True,
        said=Digest(),
        end="",
        messages=Digest(),
        seconds=seconds,
    )


def test_turns_come_back_in_their_order_from_any_one_on() -> None:
    kept = KeptTurns()
    assert kept.add(turn(), b"0", 0.0) is KEPT
    assert kept.add(turn(number=1, known=3), b"1", 1.0) is KEPT
    assert kept.since("t", 0) == (KEPT, (b"0", b"1"))
    assert kept.since("t", 1) == (KEPT, (b"1",))
    assert kept.since("t", 2) == kept.since("other", 0) == (KEPT, ())


def test_of_two_turns_of_one_number_the_first_is_kept_and_may_be_sent_again() -> None:
    kept = KeptTurns()
    assert [kept.add(turn(), text, 0.0) for text in (b"a", b"b", b"a")] == [KEPT, BEHIND, KEPT]
    assert kept.since("t", 0) == (KEPT, (b"a",))


def test_a_turn_that_knows_more_than_there_is_is_bad() -> None:
    kept = KeptTurns()
    assert kept.add(turn(known=1), b"0", 0.0) is BAD
    kept.add(turn(), b"0", 0.0)
    assert kept.add(turn(number=1, known=4), b"1", 0.0) is BAD
    assert kept.add(turn(number=1, known=-1), b"1", 0.0) is BAD
    assert kept.add(turn(number=1, known=3), b"1", 0.0) is KEPT
    assert kept.add(turn(number=2, known=6), b"2", 0.0) is KEPT, "of the last prompt and answer"


@pytest.mark.parametrize("asked", [True, False])
def test_whose_earlier_turns_are_not_here_is_lost_for_all(*, asked: bool) -> None:
    """An earlier trainer had them."""
    kept = KeptTurns()
    found = kept.since("t", 2)[0] if asked else kept.add(turn(number=2), b"2", 0.0)
    assert found is LOST
    assert kept.since("t", 0) == (LOST, ())
    assert kept.add(turn(), b"0", 0.0) is LOST


def test_what_has_ended_takes_no_turn_also_after_a_restart() -> None:
    kept = KeptTurns(counted=("before",))
    kept.add(turn(), b"0", 0.0)
    kept.end("t")
    for name in ("t", "before"):
        assert kept.add(turn(name), b"0", 0.0) is ENDED
        assert kept.since(name, 0) == (ENDED, ())
    assert len(kept) == 0


def test_what_is_idle_for_its_time_is_forgotten() -> None:
    kept = KeptTurns()
    kept.add(turn("a", seconds=10), b"0", 0.0)
    kept.add(turn("b", seconds=10), b"0", 0.0)
    kept.add(replace(turn("a", 1, known=3), seconds=10), b"1", 5.0)
    assert kept.forget(9.9) == 0
    assert kept.forget(10.0) == 1
    assert kept.since("b", 0) == (LOST, ())
    assert kept.since("a", 1) == (KEPT, (b"1",))


def test_the_longest_idle_are_forgotten_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_turns, "MOST_BYTES", 5)
    kept = KeptTurns()
    for name in ("a", "b"):
        kept.add(turn(name), b"00", 0.0)
    kept.add(turn("a", 1, known=3), b"11", 0.0)
    assert kept.forget(0.0) == 1
    assert (kept.since("b", 0)[0], len(kept)) == (LOST, 1)
    kept.end("a")
    kept.add(turn("c"), b"00000", 0.0)
    assert kept.forget(0.0) == 0, "what has ended needs no room"
    monkeypatch.setattr(kept_turns, "MOST_KEPT", 0)
    assert kept.forget(0.0) == 1


def test_names_that_are_gone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_turns, "MOST_GONE", 2)
    kept = KeptTurns()
    for name in ("a", "b", "c"):
        kept.end(name)
    assert [kept.since(name, 0)[0] for name in ("a", "b", "c")] == [KEPT, ENDED, ENDED]
