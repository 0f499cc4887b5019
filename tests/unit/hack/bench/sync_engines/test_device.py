"""The bench of one engine with `--staging device`, on a double's device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hack.bench.sync_engines import one_engine, throughput
from hack.bench.sync_engines.measured_member import MeasuredMember
from hack.bench.sync_engines.throughput import DEVICE, BenchCase, BenchGroup
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync import member
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcesses
from tests.unit.rollcall_runtime.sync.staging_memory import gpu_memory

ALONE = pytest.mark.skipif(torch.accelerator.is_available(), reason="a device is here")
FORK_SERVER = f"{__name__}:fork_members"
DOUBLE = {"library": doubles.NCCL, "cudaRuntime": doubles.NCCL}


class DoubleMember(MeasuredMember):
    """Its accelerator is the double's."""

    def _accelerator(self) -> DeviceAllocator | None:
        return gpu_memory()

    def places(self) -> tuple[str, str]:
        """Where a sender's snapshot and a receiver's target are."""
        snapshot = self._snapshot.buffer.device if self._snapshot else ""
        return snapshot, self._target.device


def fork_members() -> None:
    """Where such members come from."""
    member.fork_members(DoubleMember)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "config", "place", "senders"),
    [("nccl", DOUBLE, "cuda", 1), ("nccl", DOUBLE, "cuda", 2), ("gloo", {}, "cpu", 1)],
)
def test_weights_are_where_the_engine_takes_them(
    tmp_path: Path, engine: str, config: dict[str, Any], place: str, senders: int
) -> None:
    doubles.build()
    load = BenchCase(
        engine=engine,
        receivers=2,
        nbytes=300_000,
        bucket_bytes=64 << 10,
        rounds=2,
        staging=DEVICE,
        senders=senders,
    )
    with MemberProcesses(
        tmp_path, engine=engine, config=config, device="cuda", start=FORK_SERVER
    ) as processes:
        party = BenchGroup(load, processes)
        rounds, correct = throughput.measure(party)
        assert party.senders[0].do("places")[0] == place
        assert [receiver.do("places")[1] for receiver in party.receivers] == [place] * 2
    assert correct
    assert throughput.report(load, rounds, correct=correct)["staging"] == "device"


@ALONE
def test_a_device_is_needed(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--engine", "gloo", "--size", "64Ki", "--staging", "device", "--json"]
    assert one_engine.main(arguments) == ExitCode.FAILED
    assert "torch finds no accelerator here" in capfd.readouterr().err


@ALONE
def test_a_member_without_a_device_says_so() -> None:
    with pytest.raises(RuntimeError, match="no accelerator to stage weights on"):
        MeasuredMember(MemberId("pod-0", "boot")).stage_on_device()
