"""Which device a trainer rank computes on; it is no CPU by accident."""

import importlib.util

import pytest
import torch

from rollcall_runtime.worker import devices
from rollcall_runtime.worker.devices import check_seen, choose_device, device_of, own_device
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import job_config


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without accelerators, and a torch that is built for CPUs alone."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for name in devices.VISIBLE_DEVICES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def has_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.accelerator, "is_available", lambda: True)
    machine.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))


def test_an_accelerator_is_used_where_there_is_one(machine: pytest.MonkeyPatch) -> None:
    has_gpu(machine)
    assert choose_device(job_config(trainer_device="auto")) == "cuda"


def test_a_cpu_may_be_all_there_is(machine: pytest.MonkeyPatch) -> None:
    assert choose_device(job_config(trainer_device="auto")) == "cpu"


def test_a_cpu_is_used_beside_an_accelerator_if_it_was_asked_for(
    machine: pytest.MonkeyPatch,
) -> None:
    has_gpu(machine)
    assert choose_device(job_config(trainer_device="cpu")) == "cpu"


@pytest.mark.parametrize(
    ("cuda", "hip", "package", "built_for"),
    [
        ("13.0", None, None, "CUDA 13.0"),
        (None, "6.4", None, "ROCm 6.4"),
        (None, None, "torch_npu", "Ascend"),
    ],
)
def test_an_image_for_accelerators_does_not_fall_back_on_the_cpu(
    machine: pytest.MonkeyPatch,
    cuda: str | None,
    hip: str | None,
    package: str | None,
    built_for: str,
) -> None:
    machine.setattr(torch.version, "cuda", cuda)
    machine.setattr(torch.version, "hip", hip)
    machine.setattr(importlib.util, "find_spec", lambda name: name == package or None)
    with pytest.raises(SpecError) as caught:
        choose_device(job_config(trainer_device="auto"))
    assert caught.value.field == "spec.trainer.device"
    assert caught.value.problem.startswith(f"the image is built for {built_for}, and no such")
    assert "set spec.trainer.device: cpu" in caught.value.problem
    assert choose_device(job_config(trainer_device="cpu")) == "cpu"


def test_a_job_that_asks_for_accelerators_and_sees_none_fails(machine: pytest.MonkeyPatch) -> None:
    asking = job_config(trainer_device="auto", trainer_accelerators={"nvidia.com/gpu": 2})
    with pytest.raises(SpecError) as caught:
        choose_device(asking)
    assert str(caught.value).startswith(
        "spec.trainer.template: the trainer's container asks for 2 nvidia.com/gpu, and this "
        "process sees none; check the node's driver"
    )
    machine.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(SpecError, match=r"this process \(CUDA_VISIBLE_DEVICES=7\) sees none"):
        choose_device(asking)


def test_another_workers_error_names_its_own_section(machine: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match=r"^spec\.reference\.template: the reference's container"):
        device_of("reference", asked="auto", accelerators={"nvidia.com/gpu": 1})
    machine.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(
        SpecError, match=r"^spec\.reference\.device: .* set spec\.reference\.device"
    ):
        device_of("reference", asked="auto", accelerators={})
    assert device_of("reference", asked="cpu", accelerators={}) == "cpu"


def test_a_rollout_that_asks_for_accelerators_and_sees_none_fails(
    machine: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SpecError) as caught:
        check_seen({"huawei.com/Ascend910": 1})
    assert str(caught.value).startswith(
        "spec.template: the rollout's container asks for 1 huawei.com/Ascend910, and this process "
        "sees none; check the node's driver"
    )
    check_seen({})
    has_gpu(machine)
    check_seen({"nvidia.com/gpu": 1})


@pytest.mark.parametrize(
    ("local_rank", "visible", "own"),
    [
        (0, None, "0"),
        (3, None, "3"),
        (1, "4,5", "5"),
        (1, "GPU-a, GPU-b", "GPU-b"),
        pytest.param(2, "4,5", "", id="there are fewer devices than ranks"),
    ],
)
def test_each_process_of_a_pod_sees_one_device(
    local_rank: int, visible: str | None, own: str
) -> None:
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = own_device(local_rank, given)
    assert found == {"CUDA_VISIBLE_DEVICES": own, "ASCEND_RT_VISIBLE_DEVICES": str(local_rank)}
