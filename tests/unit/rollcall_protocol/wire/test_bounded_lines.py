"""Lines of a stream within bounds; what is beyond them is refused before it costs anything."""

import pytest

from rollcall_protocol.wire.bounded_lines import (
    Allowance,
    BoundedLines,
    LineBounds,
    TooMuchError,
)

BOUNDS = LineBounds(longest=10, nbytes=100, bytes_each_second=50, idle=4, idle_each_second=2)


def lines_of(*pieces: bytes) -> list[bytes]:
    lines = BoundedLines(BOUNDS, 0.0)
    return [line for piece in pieces for line in lines.take(piece, 0.0)]


def test_lines_come_whole_however_they_are_cut() -> None:
    assert lines_of(b"ab", b"c\nd\n\n  \ne", b"f", b"\n") == [b"abc", b"d", b"ef"]


@pytest.mark.parametrize("piece", [b"x" * 11, b"x" * 11 + b"\n", b"a\n" + b"x" * 11])
def test_a_line_is_no_longer_than_the_bound(piece: bytes) -> None:
    with pytest.raises(TooMuchError, match="a line of more than 10 bytes"):
        lines_of(piece)


def test_a_line_may_not_grow_piece_by_piece() -> None:
    with pytest.raises(TooMuchError, match="a line of more than 10 bytes"):
        lines_of(*[b"xxx"] * 4)


def test_empty_lines_are_bounded_at_once_and_by_the_second() -> None:
    lines = BoundedLines(BOUNDS, 0.0)
    assert list(lines.take(b"\n" * 4, 0.0)) == []
    with pytest.raises(TooMuchError, match="more than 2 empty lines a second"):
        list(lines.take(b"\n", 0.4))
    assert list(lines.take(b"\n\n", 1.0)) == []


def test_bytes_are_bounded_at_once_and_by_the_second() -> None:
    lines = BoundedLines(BOUNDS, 0.0)
    for _ in range(10):
        list(lines.take(b"123456789\n", 0.0))
    with pytest.raises(TooMuchError, match="more than 50 bytes a second"):
        list(lines.take(b"1\n", 0.0))
    assert list(lines.take(b"1\n", 1.0)) == [b"1"]


def test_an_allowance_holds_no_more_than_its_burst() -> None:
    allowance = Allowance(0.0, burst=2, each_second=1)
    assert [allowance.take(100.0) for _ in range(3)] == [True, True, False]
