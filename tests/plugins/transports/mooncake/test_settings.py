"""Mooncake on IPv6 addresses, and RDMA on a node that has no RDMA device."""

from pathlib import Path

import pytest

from rollcall_protocol.job_config import EngineRef, GroupConfig
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.pull import mooncake_reads as mooncake
from rollcall_runtime.sync.open_engine import open_engine
from rollcall_runtime.worker.errors import SpecError
from tests.plugins.transports.transport import transport

transport("mooncake")


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the kernel lists RDMA devices; it does not exist yet."""
    folder = tmp_path / "infiniband"
    monkeypatch.setattr(mooncake, "_RDMA_DEVICES", folder)
    return folder


def test_rdma_without_a_device_is_refused_with_the_field_and_what_to_do(devices: Path) -> None:
    group = GroupConfig("default", EngineRef("mooncake", {"protocol": "rdma"}))
    message = (
        r"^spec\.weightSync\.config: protocol is rdma, but this pod does not see an RDMA device "
        rf"\({devices} has none\); .* set protocol to tcp"
    )
    with pytest.raises(SpecError, match=message):
        open_engine(
            group, member=MemberId("pod-1", "boot"), address="127.0.0.1", role=Role.RECEIVER
        )


def test_a_missing_rdma_device_is_named_with_those_that_are_there(devices: Path) -> None:
    (devices / "mlx5_0").mkdir(parents=True)
    mooncake.require_rdma_devices("rdma", "")
    mooncake.require_rdma_devices("rdma", "mlx5_0")
    with pytest.raises(ValueError, match=r"RDMA devices mlx5_7 .*has mlx5_0\).*correct deviceName"):
        mooncake.require_rdma_devices("rdma", "mlx5_0,mlx5_7")


def test_tcp_needs_no_rdma_device(devices: Path) -> None:
    assert not devices.exists()
    mooncake.require_rdma_devices("tcp", "")


def test_an_ipv6_address_needs_mooncake_loaded_for_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MC_USE_IPV6", raising=False)
    mooncake.require_address_family("10.0.0.1")
    with pytest.raises(ValueError, match=r"cannot use fd00::1: .* set MC_USE_IPV6=1"):
        mooncake.require_address_family("fd00::1")
