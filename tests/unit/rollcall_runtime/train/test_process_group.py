"""The ranks of a trainer meet, and those without its secret do not."""

import importlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hack.free_ports import free_port
from rollcall_runtime.sync import rank_values
from rollcall_runtime.sync.rendezvous_connection import RendezvousAddress
from rollcall_runtime.sync.rendezvous_server import RendezvousServer
from rollcall_runtime.train.process_group import (
    TrainerProcessGroup,
    TrainerRendezvous,
    collective_backend,
)
from rollcall_runtime.train.rendezvous_store import RendezvousStore

HOST, SECRET = "127.0.3.1", "of the job"


def test_a_process_group_at_a_time_and_it_leaves_nothing_behind() -> None:
    ranks = TrainerProcessGroup()
    assert (ranks.rank, ranks.size, ranks.device) == (0, 1, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="a training process group already"):
        TrainerProcessGroup()
    ranks.close()
    ranks.close()
    assert not dist.is_initialized()


def test_one_rank_broadcasts_and_gathers_what_is_json() -> None:
    ranks = TrainerProcessGroup()
    try:
        assert ranks.broadcast_value({"a": (1, None)}) == {"a": [1, None]}
        assert ranks.gather("ü") == ["ü"]
        assert ranks.gather_for_checkpoint([1.5]) == [[1.5]]
        with pytest.raises(ValueError, match="only values of JSON"):
            ranks.gather({1, 2})
    finally:
        ranks.close()


def test_a_value_that_is_too_long_is_refused(
    ranks: TrainerProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_values, "MAX_VALUE_BYTES", 10)
    with pytest.raises(ValueError, match="a value of 12 bytes; at most 10"):
        ranks.gather("0123456789")


@pytest.mark.parametrize("length", [-1, 0, rank_values.MAX_VALUE_BYTES + 1, 1 << 62])
def test_a_length_that_no_value_has_is_not_believed(
    ranks: TrainerProcessGroup, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Another rank says that so much follows."""

    def all_gather(lengths: list[torch.Tensor], own: torch.Tensor, **_: Any) -> None:
        lengths[0].copy_(own)
        lengths[1].fill_(length)

    monkeypatch.setattr(ranks, "size", 2)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, **_: tensor.fill_(length))
    with pytest.raises(ValueError, match=f"another rank sends {length} bytes; 1 to"):
        ranks.gather("a")
    monkeypatch.setattr(ranks, "rank", 1)
    with pytest.raises(ValueError, match=f"another rank sends {length} bytes; 1 to"):
        ranks.broadcast_value()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_the_device_decides_what_moves_tensors(device: str, backend: str) -> None:
    assert collective_backend(device) == backend


def test_ascends_library_is_imported_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    assert collective_backend("npu") == "cpu:gloo,npu:hccl"
    assert imported == ["torch_npu"]
    with pytest.raises(ValueError, match="no collective library is known for 'tpu'"):
        collective_backend("tpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 2, "size": 2}, "rank 2 is not within a world of 2"),
        ({"rank": -1}, "rank -1 is not within a world of 1"),
        ({"size": 2}, "need a host and a port"),
        ({"size": 2, "host": "trainer-0"}, "need a host and a port"),
        ({"size": 2, "host": "trainer-0", "port": 1}, "need a secret"),
    ],
)
def test_a_meeting_place_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerRendezvous(**wrong)


def test_a_rank_that_stays_away_is_not_waited_for_for_ever() -> None:
    port = free_port(host=HOST)
    with pytest.raises(RuntimeError, match=r"timed out after 0.5 s waiting for ranks \[1\] of 2"):
        TrainerProcessGroup(TrainerRendezvous(HOST, port, 0, 2, secret=SECRET, timeout=0.5))
    assert not dist.is_initialized()
    socket.create_server((HOST, port)).close()  # and the port is free again


def test_rank_0_that_stays_away_is_not_waited_for_for_ever() -> None:
    meeting = TrainerRendezvous(HOST, free_port(host=HOST), 1, 2, secret=SECRET, timeout=0.3)
    with pytest.raises(RuntimeError, match="rank 1 cannot reach rank 0"):
        TrainerProcessGroup(meeting)


@contextmanager
def serving() -> Iterator[RendezvousAddress]:
    server = RendezvousServer(HOST, secret=SECRET)
    try:
        yield server.address
    finally:
        server.close()


def store(
    address: RendezvousAddress, rank: int, *, size: int = 2, seconds: float = 10.0
) -> RendezvousStore:
    return RendezvousStore(address, rank=rank, size=size, timeout=seconds)


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as threads:
        return [future.result(20) for future in [threads.submit(first), threads.submit(second)]]


def test_ranks_share_a_table() -> None:
    with serving() as address:
        zero, one = both(lambda: store(address, 0), lambda: store(address, 1))
        zero.set("key", b"\x00\xff")
        assert one.get("key") == b"\x00\xff"
        assert [zero.add("count", 2), one.add("count", -1), zero.add("count", 0)] == [2, 1, 1]
        assert one.get("count") == b"1", "as torch's own stores have it"
        assert one.check(["key", "count"])
        assert not one.check(["key", "other"])
        later = threading.Timer(0.1, zero.set, ["later", b"1"])
        later.start()
        one.wait(["key", "later"])
        later.join()
        for rank in (zero, one):
            rank.close()


def test_a_wait_ends_when_another_rank_is_lost() -> None:
    with serving() as address:
        zero, one = both(lambda: store(address, 0), lambda: store(address, 1))
        threading.Timer(0.1, one.close).start()
        with pytest.raises(RuntimeError, match="rank 1 disconnected"):
            zero.get("never")
        zero.close()


@pytest.mark.alone
def test_outsiders_are_refused_and_do_not_hold_up_the_ranks() -> None:
    """One guesses the secret and claims rank 1, one says nothing, one sends a gigabyte's length."""
    with serving() as address:
        silent = socket.create_connection((address.host, address.port))
        loud = socket.create_connection((address.host, address.port))
        loud.sendall(struct.pack(">I", 1 << 30) + b"x" * 100)
        guess = RendezvousAddress(address.host, address.port, "guess")
        with pytest.raises(RuntimeError, match=r"rendezvous of rank 0 failed|cannot reach"):
            store(guess, 1)
        began = time.monotonic()
        zero, one = both(lambda: store(address, 0), lambda: store(address, 1))
        assert time.monotonic() - began < 1.0
        assert zero.check(["rank/0", "rank/1"])
        for connection in (zero, one, silent, loud):
            connection.close()


def test_an_outsider_cannot_take_a_ranks_place() -> None:
    with serving() as address:
        guess = RendezvousAddress(address.host, address.port, "guess")
        with ThreadPoolExecutor(1) as thread:
            outsider = thread.submit(store, guess, 1)
            with pytest.raises(RuntimeError, match=r"waiting for ranks \[1\] of 2"):
                store(address, 0, seconds=1.0)
        assert isinstance(outsider.exception(), RuntimeError)


def test_a_second_process_of_a_rank_comes_too_late() -> None:
    with serving() as address:
        zero, one = both(lambda: store(address, 0), lambda: store(address, 1))
        with pytest.raises(RuntimeError, match="another process is rank 1; this one came too late"):
            store(address, 1)
        for rank in (zero, one):
            rank.close()


def test_a_rank_that_restarts_while_others_are_awaited_takes_its_own_place() -> None:
    with serving() as address:
        with pytest.raises(RuntimeError, match=r"timed out after 0\.2 s"):
            store(address, 1, size=3, seconds=0.2)
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda rank: store(address, rank, size=3), range(3)))
        roster = json.loads(found[0].get("roster"))
        assert len(roster) == 3
        for rank in found:
            rank.close()
