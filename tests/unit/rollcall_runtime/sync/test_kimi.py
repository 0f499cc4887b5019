"""The engine that gives each node one copy of the weights."""

import json

import pytest

from rollcall_protocol.ids import MemberId
from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.engine import descriptor_text
from rollcall_runtime.sync.errors import JoinFailedError

kimi = pytest.importorskip("rollcall_runtime.sync.kimi", reason="needs Mooncake")


def seat(rank: int, **descriptor: str) -> Seat:
    text = descriptor_text(json.dumps(descriptor).encode())
    return Seat(
        member=MemberId(f"pod-{rank}", "boot"), address=f"127.0.0.{rank + 1}", descriptor=text
    )


def test_receivers_are_grouped_by_node_and_the_lowest_rank_leads() -> None:
    seats = [seat(rank, node=node) for rank, node in enumerate("aabab")]
    assert kimi.nodes(seats) == ((1, 3), (2, 4))


def test_who_does_not_tell_its_node_is_named() -> None:
    seats = [seat(0, node="a"), seat(1, node="a"), seat(2)]
    with pytest.raises(JoinFailedError) as caught:
        kimi.nodes(seats)
    assert caught.value.peer == seats[2].member


def test_a_node_can_be_an_address() -> None:
    assert kimi.node_of(kimi.NodeOf.ADDRESS, "127.0.0.7") == "127.0.0.7"


@pytest.mark.parametrize("wrong", [{"node_of": "rack"}, {"topology": "chain"}])
def test_a_wrong_setting_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kimi.KimiSettings(**wrong)
