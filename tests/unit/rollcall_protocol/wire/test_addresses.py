"""Addresses with ports: IPv6 in brackets, wherever members are named to each other."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.member_table import MemberRecord, MemberTable
from rollcall_protocol.membership.session_formation import SenderSeats
from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.messages import CatchUp, Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from tests.unit.rollcall_protocol.membership.simulated_group import hello, roster

IPV6 = "fd00::7"


@pytest.mark.parametrize(
    ("host", "text"),
    [(IPV6, "[fd00::7]:80"), ("10.0.0.7", "10.0.0.7:80"), ("a-trainer-0.a", "a-trainer-0.a:80")],
)
def test_an_ipv6_address_stands_in_brackets(host: str, text: str) -> None:
    assert host_port(host, 80) == text


def test_donors_with_ipv6_addresses_can_be_reached() -> None:
    members = MemberTable(
        job_uid="job",
        group="default",
        coordinator_uid="trainer",
        max_staleness=1,
        fallback_donor="trainer:7100",
        catch_up=StretchedBound(1),
    )
    members.take_roster(roster(1, "a", "late"))
    held = Version(Lineage(1, 1), 3)
    members.committed(held, WeightManifest((), 0, 1, ()))
    holder = replace(hello("a", held=held), address=IPV6)
    members.by_pod["uid-a"] = MemberRecord(holder, MemberState.IN_SYNC, held)
    members.by_pod["uid-late"] = MemberRecord(hello("late"))
    (asked,) = members.admit_waiting(0, but=set())
    assert isinstance(asked.message, CatchUp)
    assert asked.message.donors[0].startswith(f"[{IPV6}]:")


def test_senders_with_ipv6_addresses_can_be_reached() -> None:
    seats = SenderSeats(Seat(MemberId("trainer", "b1"), IPV6, ""), expected=1)
    assert seats.donors.startswith(f"[{IPV6}]:")
