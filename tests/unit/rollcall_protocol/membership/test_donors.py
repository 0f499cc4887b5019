"""From whom several newcomers fetch the version at once, and who waits for whom."""

from dataclasses import replace

import pytest

from rollcall_protocol.membership.member_table import MAX_NEWCOMERS, MemberRecord, MemberTable
from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.messages import CatchUp, CaughtUp
from tests.unit.rollcall_protocol.membership.simulated_group import MANIFEST, hello, roster

HELD = Version(Lineage(1, 1), 3)
TRAINER = "trainer"


def members(*holders: str, newcomers: str, shards: str = "") -> MemberTable:
    """A table in which `holders` serve the version and `newcomers`, each of a letter, hold none.

    `shards` has a letter for the shard of each newcomer.
    """
    table = MemberTable(
        job_uid="job",
        group="default",
        coordinator_uid="trainer",
        max_staleness=1,
        fallback_donor=f"{TRAINER}:7100",
        catch_up=StretchedBound(1),
    )
    table.take_roster(roster(1, *holders, *newcomers))
    table.committed(HELD, MANIFEST)
    for pod in holders:
        table.by_pod[f"uid-{pod}"] = MemberRecord(hello(pod), MemberState.IN_SYNC, HELD)
    for number, pod in enumerate(newcomers):
        greeting = replace(hello(pod), shard=shards[number : number + 1])
        table.by_pod[f"uid-{pod}"] = MemberRecord(greeting)
    return table


def asked(table: MemberTable) -> dict[str, list[str]]:
    """The pods that get CatchUp now, and the hosts of the donors in it, without `ip-`."""
    found = {}
    for effect in table.admit_waiting(0, but=set()):
        assert isinstance(effect.message, CatchUp)
        donors = [host.partition(":")[0].removeprefix("ip-") for host in effect.message.donors]
        found[effect.to.pod_uid.removeprefix("uid-")] = donors
    return found


def ended(table: MemberTable, pod: str, *, error: str = "") -> None:
    table.caught_up(table.by_pod[f"uid-{pod}"], CaughtUp(HELD, error), now=0)


def test_the_trainer_gives_the_version_to_one_newcomer_which_gives_it_to_the_others() -> None:
    table = members(newcomers="abcd")
    assert asked(table) == {"a": [TRAINER]}
    assert asked(table) == {}, "they wait"
    ended(table, "a")
    assert asked(table) == {pod: ["a", TRAINER] for pod in "bcd"}


@pytest.mark.parametrize("first", ["a", "d"])
def test_a_newcomer_gives_the_version_as_soon_as_it_has_it_whatever_the_pods_are_called(
    first: str,
) -> None:
    table = members(newcomers=first)
    table.take_roster(roster(2, *"abcd"))
    assert asked(table) == {first: [TRAINER]}
    for pod in set("abcd") - {first}:
        table.by_pod[f"uid-{pod}"] = MemberRecord(hello(pod))
    ended(table, first)
    assert asked(table) == {pod: [first, TRAINER] for pod in "abcd" if pod != first}


def test_a_newcomer_that_fails_or_is_lost_holds_up_no_other() -> None:
    table = members(newcomers="abc")
    assert asked(table) == {"a": [TRAINER]}
    ended(table, "a", error="no donor gave it")
    assert asked(table) == {"a": [TRAINER]}, "it tries again"
    table.by_pod["uid-a"].out(MemberState.SUSPECT, "it is stuck")
    assert asked(table) == {"b": [TRAINER]}


def test_a_newcomer_waits_for_none_that_needs_another_shard() -> None:
    table = members(newcomers="abcd", shards="0011")
    assert asked(table) == {"a": [TRAINER], "c": [TRAINER]}
    ended(table, "c")
    assert asked(table) == {"d": ["c", TRAINER]}


def test_a_rollout_gives_the_version_to_some_newcomers_at_once_and_the_trainer_to_none() -> None:
    assert MAX_NEWCOMERS == 4
    table = members("a", newcomers="bcdefghi")
    assert asked(table) == {pod: ["a", TRAINER] for pod in "bcde"}
    assert asked(table) == {}, "they wait"
    ended(table, "b")
    least_busy_first = {pod: ["b", "a", TRAINER] for pod in "fgh"} | {"i": ["a", "b", TRAINER]}
    assert asked(table) == least_busy_first


def test_a_newcomer_that_left_the_roster_gives_nothing() -> None:
    table = members(newcomers="ab")
    asked(table)
    ended(table, "a")
    table.take_roster(roster(2, "b"))
    assert asked(table) == {"b": [TRAINER]}
