"""What a member or a container says is one printable line before it goes further."""

import pytest

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import (
    MemberReport,
    MemberState,
    SessionCause,
    SessionReport,
)
from rollcall_protocol.wire.printable_text import one_line, printable_lines

HOSTILE = (
    "\x1b[2J",  # clears the screen
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x07",  # writes the clipboard
    "\x9b2J",  # C1
    "\u202eevil\u2066",  # turns the direction
    "a\r\nb\0",
    "\ud800",
    "\u200b",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    found = one_line(f"before {text} after")
    assert found.isprintable()
    assert found.startswith("before ")
    assert found.endswith(" after")


def test_letters_of_all_languages_stay() -> None:
    assert one_line("naïve 漢字 🙂 ⏎") == "naïve 漢字 🙂 ⏎"


@pytest.mark.parametrize("text", HOSTILE)
def test_reports_about_members_and_sessions_are_printable(text: str) -> None:
    member = MemberReport("u", "pod", "cpu", MemberState.DRAINING, reason=text)
    session = SessionReport(SessionId(1, 1, 1), SessionCause.ENGINE_ERROR, 2, 0.1, detail=text)
    assert member.reason.isprintable()
    assert session.detail.isprintable()


def test_problems_of_a_spec_stay_lines() -> None:
    assert printable_lines("a\x1b[2J\nb\u202e") == "a [2J\nb "
