"""What this machine has, and what pods get of it."""

import logging
import os
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rollcall_local.kubelet.machine import Machine, memory_limit, requests, this_machine


def pod(*containers: dict[str, Any], inits: Any = ()) -> dict[str, Any]:
    def named(resources: dict[str, Any]) -> dict[str, Any]:
        return {"name": "worker", "resources": resources}

    return {
        "spec": {
            "containers": [named(each) for each in containers],
            "initContainers": [named(each) for each in inits],
        }
    }


def test_a_pod_asks_for_the_sum_of_its_containers() -> None:
    found = requests(
        pod({"requests": {"cpu": "500m", "memory": "1Gi"}}, {"requests": {"cpu": 2}}, {})
    )
    assert found == {"cpu": Decimal("2.5"), "memory": Decimal(2**30), "nvidia.com/gpu": 0}


def test_a_limit_alone_is_a_request() -> None:
    found = requests(pod({"limits": {"nvidia.com/gpu": 2, "cpu": 4}, "requests": {"cpu": 1}}))
    assert (found["nvidia.com/gpu"], found["cpu"]) == (Decimal(2), Decimal(1))


def test_an_init_container_counts_if_it_asks_for_more_than_all_others() -> None:
    spec = pod({"requests": {"cpu": 1}}, {"requests": {"cpu": 1}}, inits=[{"requests": {"cpu": 5}}])
    assert requests(spec)["cpu"] == 5
    spec = pod({"requests": {"cpu": 6}}, inits=[{"requests": {"cpu": 5}}, {"requests": {"cpu": 4}}])
    assert requests(spec)["cpu"] == 6


def test_a_memory_limit_is_in_bytes() -> None:
    assert memory_limit({"resources": {"limits": {"memory": "64Mi"}}}) == 64 << 20
    assert memory_limit({"resources": {"limits": {"cpu": 1}}}) is None
    assert memory_limit({}) is None


def a_machine() -> Machine:
    return Machine({"cpu": Decimal(4), "nvidia.com/gpu": Decimal(2)}, ("GPU-a", "GPU-b"))


def test_what_one_pod_has_another_does_not_get() -> None:
    machine = a_machine()
    assert machine.give("one", {"cpu": Decimal(3)}) == ""
    problem = machine.give("two", {"cpu": Decimal("1.5")})
    assert problem == "Insufficient cpu: 1.5 is asked for, 1 is free"
    machine.take_back("one")
    assert machine.give("two", {"cpu": Decimal("1.5")}) == ""
    machine.take_back("never-there")


def test_a_pod_that_gets_nothing_takes_nothing() -> None:
    machine = a_machine()
    assert machine.give("one", {"cpu": Decimal(1), "nvidia.com/gpu": Decimal(3)})
    assert machine.gpus_of("one") == ()
    assert machine.give("two", {"cpu": Decimal(4)}) == ""


def test_a_resource_that_the_machine_lacks_is_named() -> None:
    assert a_machine().give("one", {"memory": Decimal(1)}).startswith("Insufficient memory")


def test_each_pod_has_gpus_of_its_own() -> None:
    machine = a_machine()
    one_gpu = {"nvidia.com/gpu": Decimal(1)}
    machine.give("none", {"cpu": Decimal(1)})
    machine.give("one", one_gpu)
    machine.give("two", one_gpu)
    assert [machine.gpus_of(uid) for uid in ("none", "one", "two")] == [(), ("GPU-a",), ("GPU-b",)]
    machine.take_back("one")
    machine.give("three", one_gpu)
    assert machine.gpus_of("three") == ("GPU-a",)


def test_this_machine_has_processors_and_memory() -> None:
    capacity = this_machine().capacity
    assert capacity["cpu"] == os.cpu_count()
    assert capacity["memory"] > 2**28


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus_are_those_that_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo GPU-1; echo GPU-2")
    machine = this_machine()
    assert machine.gpus == ("GPU-1", "GPU-2")
    assert machine.capacity["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(("visible", "gpus"), [("3,GPU-1", ("3", "GPU-1")), ("", ()), ("-1", ())])
def test_gpus_that_are_hidden_from_this_process_are_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, gpus: tuple[str, ...]
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo GPU-1; echo GPU-2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().gpus == gpus


def test_an_nvidia_smi_that_fails_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "exit 9")
    with caplog.at_level(logging.WARNING):
        assert this_machine().gpus == ()
    assert "nvidia-smi fails" in caplog.text


def test_a_machine_without_nvidia_smi_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert this_machine().gpus == ()
