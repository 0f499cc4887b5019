"""Members that hold a shard of the weights give it only to newcomers that need the same."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.member_table import MemberRecord, MemberTable
from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.messages import CatchUp
from tests.unit.rollcall_protocol.membership.simulated_group import MANIFEST, hello, roster

HELD = Version(Lineage(1, 1), 3)
HOLDERS = {"a": "", "b": "0/2", "c": "1/2"}


@pytest.mark.parametrize(
    ("shard", "donors"),
    [("", ["a"]), ("0/2", ["a", "b"]), ("1/2", ["a", "c"]), ("0/4", ["a"])],
)
def test_a_newcomer_gets_donors_that_hold_the_shard_it_needs(shard: str, donors: list[str]) -> None:
    members = MemberTable(
        job_uid="job",
        group="default",
        coordinator_uid="trainer",
        max_staleness=1,
        fallback_donor="trainer:7100",
        catch_up=StretchedBound(1),
    )
    members.take_roster(roster(1, *HOLDERS, "late"))
    members.committed(HELD, MANIFEST)
    for pod, held in HOLDERS.items():
        greeting = replace(hello(pod, held=HELD), shard=held)
        members.by_pod[f"uid-{pod}"] = MemberRecord(greeting, MemberState.IN_SYNC, HELD)
    members.by_pod["uid-late"] = MemberRecord(replace(hello("late"), shard=shard))
    (asked,) = members.admit_waiting(0, but=set())
    assert isinstance(asked.message, CatchUp)
    assert [donor.partition(":")[0] for donor in asked.message.donors] == [
        *(f"ip-{pod}" for pod in donors),
        "trainer",
    ]
