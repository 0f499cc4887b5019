"""What a pod template may ask for on one machine; each refusal names its field."""

from pathlib import Path
from typing import Any

import pytest

from rollcall_local.kubelet.supported import refusals

USER = 1000
SPEC = "spec.template.spec"
CONTAINER = f"{SPEC}.containers[0]"


def refused(spec: dict[str, Any], **images: Path) -> list[str]:
    template = {"spec": {"containers": [], **spec}}
    return list(refusals(template, "spec.template", images=images, user=USER))


def of_container(**container: Any) -> list[str]:
    return refused({"containers": [{"name": "worker", **container}]})


def test_a_usual_template_is_not_refused() -> None:
    probe = {"httpGet": {"port": "http"}}
    worker = {
        "image": "worker:1",
        "command": ["serve"],
        "ports": [{"name": "http", "containerPort": 80}],
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"nvidia.com/gpu": "1"},
        },
        "readinessProbe": probe,
        "livenessProbe": {"exec": {"command": ["true"]}},
        "startupProbe": {"tcpSocket": {"port": 80}},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}],
        "securityContext": {"runAsUser": USER, "runAsNonRoot": True},
    }
    spec = {
        "containers": [worker],
        "initContainers": [{"name": "first", "command": ["true"]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "gpu"}],
        "securityContext": {"runAsUser": USER},
    }
    assert refused(spec) == []
    assert list(refusals({}, "spec.template", images={}, user=USER)) == []


@pytest.mark.parametrize(
    "field", ["nodeSelector", "affinity", "topologySpreadConstraints", "runtimeClassName"]
)
def test_where_a_pod_goes_cannot_be_chosen(field: str) -> None:
    assert refused({field: {"a": "b"}}) == [
        f"{SPEC}.{field}: there is one machine; remove it for a local run"
    ]


def test_a_kind_of_volume_that_is_not_there_is_named() -> None:
    (refusal,) = refused({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {}}]})
    assert refusal.startswith(f"{SPEC}.volumes[1].nfs: is not there on one machine; use")
    assert "emptyDir" in refusal


@pytest.mark.parametrize("field", ["lifecycle", "volumeDevices"])
def test_a_field_of_a_container_that_is_not_there_is_named(field: str) -> None:
    assert of_container(**{field: {"a": "b"}}) == [
        (f"{CONTAINER}.{field}: is not there on one machine; remove it for a local run")
    ]


def test_an_init_container_that_stays_is_refused() -> None:
    inits = [{"name": "first"}, {"name": "stays", "restartPolicy": "Always"}]
    assert refused({"initContainers": inits}) == [
        (
            f"{SPEC}.initContainers[1].restartPolicy: an init container that stays is not "
            "there on one machine"
        )
    ]


def test_an_image_must_stand_for_an_environment_that_exists(tmp_path: Path) -> None:
    spec = {"containers": [{"name": "worker", "image": "vllm"}]}
    assert refused(spec, vllm=tmp_path) == []
    (refusal,) = refused(spec, vllm=tmp_path / "bin" / "python")
    assert refusal.startswith(f"{CONTAINER}.image: vllm stands for ")
    assert refusal.endswith("which does not exist; see --image")


@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_a_resource_that_is_not_handed_out_is_named(kind: str) -> None:
    assert of_container(resources={kind: {"amd.com/gpu": "1"}}) == [
        (
            f"{CONTAINER}.resources: amd.com/gpu is not handed out on one machine; "
            "known are cpu, memory, nvidia.com/gpu"
        )
    ]


def test_a_sub_path_with_variables_is_refused() -> None:
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "a", "subPathExpr": "$(X)"}]
    assert of_container(volumeMounts=mounts) == [
        (f"{CONTAINER}.volumeMounts[1].subPathExpr: is not there on one machine; use subPath")
    ]


@pytest.mark.parametrize("field", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_a_probe_that_cannot_be_asked_is_refused(field: str) -> None:
    where = f"{CONTAINER}.{field}"
    assert of_container(**{field: {"grpc": {"port": 1}}}) == [
        f"{where}.grpc: is not asked here; use httpGet, tcpSocket or exec"
    ]
    ports = [{"name": "http", "containerPort": 1}]
    assert of_container(**{field: {"tcpSocket": {"port": "grpc"}}}, ports=ports) == [
        f"{where}.tcpSocket.port: the container has no port grpc; add it"
    ]
    assert of_container(**{field: {"httpGet": {"port": "web"}}}) == [
        f"{where}.httpGet.port: the container has no port web; add it"
    ]


def test_another_user_is_refused() -> None:
    message = (
        f"securityContext.runAsUser: 0: all processes run as the user of this program, {USER}; "
        f"remove it for a local run"
    )
    assert refused({"securityContext": {"runAsUser": 0}}) == [f"{SPEC}.{message}"]
    assert of_container(securityContext={"runAsUser": 0}) == [f"{CONTAINER}.{message}"]


def test_more_rights_are_refused() -> None:
    assert of_container(securityContext={"privileged": True}) == [
        (f"{CONTAINER}.securityContext.privileged: is not there on one machine; remove it")
    ]
