"""What a run needs of its machine: each refusal says what is missing, and what to do."""

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rollcall_local.machine_check import check
from rollcall_local.manifests import ManifestError

ENOUGH = {"cpu": Decimal(64), "memory": Decimal(2**40), "nvidia.com/gpu": Decimal(8)}


def job(*, image: str = "worker:1", **resources: str) -> dict[str, Any]:
    def template(**requested: str) -> dict[str, Any]:
        worker = {"name": "worker", "image": image, "resources": {"requests": requested}}
        return {"spec": {"containers": [worker]}}

    spec = {
        "trainer": {"template": template()},
        "rollouts": [{"name": "cpu", "template": template(**resources)}],
    }
    return {"kind": "RLJob", "metadata": {"name": "reverse"}, "spec": spec}


def refusal(body: dict[str, Any], *, memory: int = 2**40, **more: Any) -> str:
    capacity = {**ENOUGH, "memory": Decimal(memory)}
    with pytest.raises(ManifestError) as found:
        check([body], **{"images": {}, "capacity": capacity, **more})
    return str(found.value)


def program(folder: Path, script: str) -> Path:
    """Stands for an environment's Python."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return python


def test_a_usual_job_is_not_refused() -> None:
    images = {"worker:1": Path(sys.executable)}
    check([job(cpu="1", memory="1Gi")], images=images, capacity=ENOUGH, platform="linux")


def test_another_system_is_refused_with_what_is_missing_there() -> None:
    text = refusal(job(), platform="darwin")
    for what in ("needs Linux", "127/8", "/proc", "prctl", "virtual machine"):
        assert what in text


def test_an_environment_for_an_image_that_no_container_has_is_refused() -> None:
    images = {"wroker:1": Path(sys.executable)}
    assert refusal(job(), images=images) == (
        "--image wroker:1: no container has this image; there are worker:1"
    )


def test_an_environment_without_torch_is_refused(tmp_path: Path) -> None:
    python = program(tmp_path, f'exec {sys.executable} -I -S "$@"')
    assert refusal(job(), images={"worker:1": python}) == (
        f"{python} has no torch and no rollcall_local; install Rollcall there: "
        f"{python} -m pip install 'rollcall[local]'"
    )


def test_an_environment_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    images = {"worker:1": program(tmp_path, "exit 3")}
    assert f"{tmp_path}/python cannot be run: " in refusal(job(), images=images)


def test_a_pod_that_asks_for_more_than_the_machine_has_is_refused_by_field() -> None:
    assert refusal(job(memory="8Gi", cpu="2"), memory=2**32) == (
        "RLJob reverse: spec.rollouts[0].template.spec.containers: resources.requests.memory: a "
        "pod asks for 8192Mi, and this machine has 4096Mi; ask for less"
    )


def test_every_resource_that_is_too_much_is_named_at_once() -> None:
    text = refusal(job(**{"cpu": "65", "nvidia.com/gpu": "9"}))
    assert "resources.requests.cpu: a pod asks for 65, and this machine has 64" in text
    assert "resources.requests.nvidia.com/gpu: a pod asks for 9 GPUs" in text
