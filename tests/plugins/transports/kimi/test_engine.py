"""The engine that gives each node one copy of the weights, with parts of checkpoint-engine."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import encode_descriptor
from rollcall_runtime.sync.errors import JoinFailedError
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

kimi = transport("kimi")
plans = pytest.importorskip("rollcall_plugins.transports.kimi.transfer_plan")
stores = pytest.importorskip("rollcall_plugins.transports.kimi.p2p_store")

ADDRESS = "127.0.0.9"


def seat(rank: int, **descriptor: str) -> Seat:
    text = encode_descriptor(json.dumps(descriptor).encode())
    return Seat(
        member=MemberId(f"pod-{rank}", "boot"), address=f"127.0.0.{rank + 1}", descriptor=text
    )


def manifest(*, total: int, bucket: int) -> WeightManifest:
    count = -(-total // bucket)
    return WeightManifest(
        tensors=(), total_bytes=total, bucket_bytes=bucket, digests=made_up(0) * count
    )


def test_receivers_are_grouped_by_node_and_the_lowest_rank_leads() -> None:
    seats = [seat(rank, node=node) for rank, node in enumerate("aabab")]
    assert kimi.ranks_by_node(seats) == ((1, 3), (2, 4))


def test_a_member_without_a_node_in_its_descriptor_is_named() -> None:
    seats = [seat(0, node="a"), seat(1, node="a"), seat(2)]
    with pytest.raises(JoinFailedError) as caught:
        kimi.ranks_by_node(seats)
    assert caught.value.peer == seats[2].member


def test_a_node_can_be_an_address() -> None:
    assert kimi.node_of(kimi.NodeIdentity.ADDRESS, "127.0.0.7") == "127.0.0.7"


@pytest.mark.parametrize("wrong", [{"node_of": "rack"}, {"topology": "chain"}])
def test_a_wrong_setting_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kimi.KimiSettings(**wrong)


# --- how checkpoint-engine plans ---


@pytest.mark.parametrize(
    ("total", "bucket", "expected"),
    [
        (7, 2, [(0, 4), (4, 7)]),  # buckets that share an operation
        (7, 3, [(0, 3), (3, 7)]),  # the last one is short
        (11, 8, [(0, 4), (4, 8), (8, 11)]),  # buckets larger than an operation
        (9, 6, [(0, 4), (4, 6), (6, 9)]),  # a piece is not put beside one that does not fit
        (0, 3, []),
    ],
)
def test_an_operation_holds_the_buckets_that_fit(
    total: int, bucket: int, expected: list[tuple[int, int]]
) -> None:
    plan = plans.plan_transfer(
        manifest(total=total, bucket=bucket), operation_bytes=4, receivers=(2, 5)
    )
    assert [(row[0].start, row[-1].end) for row in plan.operations] == expected


def test_a_plan_names_each_bucket_once_and_where_it_ends() -> None:
    plan = plans.plan_transfer(manifest(total=23, bucket=5), operation_bytes=3, receivers=(1,))
    pieces = [piece for row in plan.operations for piece in row]
    assert [piece.bucket for piece in pieces if piece.last] == [0, 1, 2, 3, 4]
    assert [piece.start for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]


@pytest.mark.parametrize("total", [0, 64])
def test_the_lowest_rank_of_a_node_reads_for_it(total: int) -> None:
    plan = plans.plan_transfer(
        manifest(total=total, bucket=8), operation_bytes=8, receivers=(3, 4, 7)
    )
    assert plan.reader == 3


# --- checkpoint-engine's store ---


@pytest.fixture
def memory() -> Any:
    return ctypes.create_string_buffer(1 << 20)


def make_store() -> Any:
    return stores.HostP2PStore(ADDRESS, stores.device_manager("cpu", protocol="auto", names=""))


@pytest.fixture(scope="module")
def store() -> Any:
    return make_store()


def test_a_store_listens_at_the_given_address_and_leaves_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    asked = stores.p2p_store.get_ip
    assert make_store().address.startswith(f"{ADDRESS}:")
    assert "RANK" not in os.environ
    assert stores.p2p_store.get_ip is asked


def test_registering_a_hundred_times_leaves_nothing_behind(store: Any, memory: Any) -> None:
    for _ in range(100):
        store.unregister(store.register(ctypes.addressof(memory), len(memory)))
    assert store.registered == 0


def test_memory_that_cannot_be_registered_is_not_kept(
    store: Any, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = SimpleNamespace(batch_register_memory=lambda *_: -1)
    monkeypatch.setattr(store._store, "engine", failing)
    with pytest.raises(RuntimeError, match="cannot register 1048576 bytes"):
        store.register(ctypes.addressof(memory), len(memory))
    assert store.registered == 0


def test_the_error_of_a_store_that_does_not_start_names_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(manager: Any) -> None:
        raise RuntimeError("no rdma devices found")

    monkeypatch.setattr(stores.p2p_store, "P2PStore", refuse)
    with pytest.raises(RuntimeError, match=rf"'tcp' on {ADDRESS}: no rdma devices found"):
        make_store()


class Accelerators:
    """Stands for checkpoint-engine's DeviceManager: eight devices."""

    def __init__(self) -> None:
        self.device_module = self
        self.chosen: int | None = None

    def device_count(self) -> int:
        return 8

    def set_device(self, index: int) -> None:
        self.chosen = index


@pytest.mark.parametrize(("kind", "device"), [("cuda", None), ("npu", 3)])
def test_checkpoint_engine_chooses_on_accelerators(
    kind: str, device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores.device_utils, "DeviceManager", Accelerators)
    monkeypatch.setenv("RANK", "11")
    manager = stores.device_manager(kind, protocol="auto", names="")
    assert isinstance(manager, Accelerators)
    assert manager.chosen == device


@pytest.mark.parametrize("kind", ["cpu", "cuda", "npu"])
def test_a_protocol_that_is_set_is_used_with_the_devices_that_are_set(kind: str) -> None:
    manager = stores.device_manager(kind, protocol="rdma", names="mlx5_0")
    assert (manager.transfer_engine_protocol, manager.rdma_device(3)) == ("rdma", "mlx5_0")


def test_a_python_without_assertions_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", f"import {stores.__name__}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path.cwd(),
    )
    assert done.returncode
    assert "ImportError: checkpoint-engine does its work in assertions" in done.stderr
