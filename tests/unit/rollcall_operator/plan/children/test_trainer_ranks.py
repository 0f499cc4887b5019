"""How many ranks a trainer has, and which accelerators decide it."""

from typing import Any

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.children.trainer_ranks import accelerators, processes_per_pod
from tests.apiserver.bad_manifests.manifests import Changes
from tests.unit.rollcall_operator.plan.simulator import good_job

RESOURCES = "spec.trainer.template.spec.containers[0].resources"


def trainer(changes: Changes) -> TrainerSpec:
    return RLJobSpec.model_validate(good_job(changes)["spec"]).trainer


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({}, {}),
        ({"limits": {"nvidia.com/gpu": 8}}, {"nvidia.com/gpu": 8}),
        ({"limits": {"nvidia.com/gpu": "8"}}, {"nvidia.com/gpu": 8}),
        (
            {"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}},
            {"nvidia.com/gpu": 2},
        ),
        ({"limits": {"nvidia.com/mig-1g.5gb": 1}}, {"nvidia.com/mig-1g.5gb": 1}),
        ({"limits": {"amd.com/gpu": 4}}, {"amd.com/gpu": 4}),
        ({"limits": {"huawei.com/Ascend910": 16}}, {"huawei.com/Ascend910": 16}),
        ({"limits": {"huawei.com/Ascend910B4": 1}}, {"huawei.com/Ascend910B4": 1}),
        ({"limits": {"nvidia.com/gpu": 0}}, {}),
        ({"limits": {"cpu": 8, "rdma/hca": 1, "nvidia.com/gpu.product": 1}}, {}),
        pytest.param({"limits": {"nvidia.com/gpu": "many"}}, {}, id="reported elsewhere"),
        pytest.param({"limits": ["nvidia.com/gpu"]}, {}, id="refused by the API server"),
    ],
)
def test_accelerators_are_known_by_the_resources_of_their_device_plugins(
    resources: Any, found: dict[str, int]
) -> None:
    assert accelerators(trainer({RESOURCES: resources}).template, "trainer") == found


GPUS = {f"{RESOURCES}.limits": {"nvidia.com/gpu": 8}}


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        pytest.param({}, 1, id="a CPU"),
        pytest.param(GPUS, 8, id="one rank for each accelerator"),
        pytest.param({**GPUS, "spec.trainer.processesPerPod": 4}, 4, id="as the job says"),
        pytest.param({"spec.trainer.processesPerPod": 2}, 2, id="CPU ranks"),
    ],
)
def test_processes_of_a_pod(changes: Changes, processes: int) -> None:
    assert processes_per_pod(trainer(changes)) == processes


def test_a_sidecars_accelerators_are_not_the_trainers() -> None:
    containers = [
        {"name": "trainer", "image": "i"},
        {"name": "viewer", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}},
    ]
    found = trainer({"spec.trainer.template.spec.containers": containers})
    assert accelerators(found.template, "trainer") == {}
