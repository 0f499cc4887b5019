"""Pod templates: the types of what the operator itself reads and completes."""

from typing import Any

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.validate import parse
from tests.apiserver.bad_manifests.manifests import changed, job

POD = "spec.trainer.template.spec"
CONTAINER = f"{POD}.containers[0]"


def mistakes(path: str, value: Any) -> tuple[str, ...]:
    return parse(RLJobSpec, changed(job(), {path: value})["spec"], "spec")[1]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (POD, "all", "spec.trainer.template.spec: must be a map"),
        (f"{POD}.initContainers", ["busybox"], f"{POD}.initContainers[0]: must be a map"),
        (f"{POD}.initContainers", {"name": "a"}, f"{POD}.initContainers: must be a list"),
        (f"{POD}.initContainers", [{"name": "a"}], "initContainers[0].image: is required; add it"),
        (f"{POD}.containers", [], f"{POD}.containers: must have 1 to 32 entries"),
        (f"{CONTAINER}.name", "x" * 64, f"{CONTAINER}.name: must have 1 to 63 characters"),
        (f"{CONTAINER}.env", ["A=1"], f"{CONTAINER}.env[0]: must be a map"),
        (f"{CONTAINER}.ports", [{"containerPort": "80"}], "containerPort: must be a whole number"),
        (f"{CONTAINER}.ports", [{"containerPort": True}], "containerPort: must be a whole number"),
        (f"{CONTAINER}.volumeMounts", [{"mountPath": 1}], "mountPath: must be a string; write it"),
        (f"{POD}.volumes", [{"name": "v", "emptyDir": "x"}], "volumes[0].emptyDir: must be a map"),
        (f"{POD}.volumes", [{"name": "v", "configMap": []}], "volumes[0].configMap: must be a map"),
        (f"{POD}.terminationGracePeriodSeconds", "9", "Seconds: must be a whole number"),
        ("spec.trainer.template.metadata", {"labels": {"v": 1}}, "metadata.labels.v: must be a"),
    ],
)
def test_a_wrong_type_is_reported_with_its_path(path: str, value: Any, message: str) -> None:
    (mistake,) = mistakes(path, value)
    assert message in mistake
    assert mistake.startswith("spec.trainer.template")


def test_a_containers_name_may_occur_once() -> None:
    twice = job()["spec"]["trainer"]["template"]["spec"]["containers"] * 2
    assert mistakes(f"{POD}.containers", twice) == (
        f"{POD}.containers: each name may occur once only",
    )


@pytest.mark.parametrize("path", [f"{POD}.volumes", f"{CONTAINER}.env", f"{POD}.securityContext"])
def test_what_is_optional_may_be_null(path: str) -> None:
    assert not mistakes(path, None)


def test_what_the_operator_does_not_read_is_the_api_servers_to_check() -> None:
    assert not mistakes(f"{POD}.nodeName", {"not": "a name"})
