"""The manifests of the how-to pages on real pods, of devices that are not there as far as they get.

Nodes that claim to have devices stand for those of a device plug-in: the scheduler and the kubelet
count them, and containers see none. Images for a device are replaced by those for CPUs, and sizes
by what the local cluster has.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.examples import PREFIX, TAG, WORKER_IMAGE, example
from hack.cluster.kubectl import Kubectl, name_of, wait_for
from hack.demo.job_progress import JobWatcher
from rollcall_protocol import pod_contract
from tests.cluster.jobs import deadlines
from tests.cluster.jobs.claimed_devices import TEMPLATE, VARIABLE, claim_template, offered
from tests.cluster.jobs.tiny_qwen3 import claim, create_model, pod_specs
from tests.unit.docs.how_to_pages import HOW_TO, manifests

DEVICES = {"nvidia.com/gpu": "8", "huawei.com/Ascend910": "16", "rdma/hca": "8"}
LIFECYCLE = "node.example.com/lifecycle"
MODELS = "/models"
NO_DEVICE = 64  # the exit code of a worker whose spec asks for what its container lacks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True)]


@pytest.fixture(scope="module")
def devices(installed: Kubectl) -> Iterator[list[str]]:
    """The nodes, which offer devices meanwhile."""
    nodes = ordinary_nodes(installed)
    _offer(installed, nodes, DEVICES)
    yield nodes
    _offer(installed, nodes, dict.fromkeys(DEVICES))


def _offer(kubectl: Kubectl, nodes: list[str], devices: dict[str, Any]) -> None:
    patch = json.dumps({"status": {"capacity": devices}})
    for node in nodes:
        kubectl.run("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def ordinary_nodes(kubectl: Kubectl) -> list[str]:
    """Those without a taint."""
    nodes = kubectl.items("nodes")
    return [name_of(node) for node in nodes if not node["spec"].get("taints")]


def page(name: str) -> list[dict[str, Any]]:
    """The manifests of a page, with images and sizes of the local cluster."""
    found = deepcopy(manifests(HOW_TO / f"{name}.md"))
    for manifest in found:
        for pod in pod_specs(manifest) if manifest["kind"] == "RLJob" else _lent(manifest):
            for container in pod["containers"]:
                container["image"] = WORKER_IMAGE
                limits = container.get("resources", {}).get("limits", {})
                limits |= {"memory": "4Gi"} if "memory" in limits else {}
    return found


def _lent(pool: dict[str, Any]) -> list[dict[str, Any]]:
    return [pool["spec"]["template"]["spec"]]


def fill_models(
    kubectl: Kubectl, folder: str, tmp_path: Any, *, selector: dict[str, str] | None = None
) -> None:
    """Put a tiny model and prompts on the volume `models`, as step 2 of a page says.

    The volume is one of the node that `selector` names.
    """
    create_model(kubectl, tmp_path / "model")
    prompts = json.dumps({"prompt": "a", "answer": "a"})
    copy = f"cp -rL /given {MODELS}/{folder} && echo '{prompts}' > {MODELS}/prompts.jsonl"
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "fill"},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": selector or {},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "fill",
                    "image": WORKER_IMAGE,
                    "command": ["sh", "-ec", copy],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "models", "mountPath": MODELS},
                        {"name": "given", "mountPath": "/given"},
                    ],
                }
            ],
            "volumes": [
                {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
                {"name": "given", "configMap": {"name": "tiny-qwen3"}},
            ],
        },
    }
    kubectl.apply(claim("models"), pod)
    wait_for(
        "the model to be on its volume",
        lambda: kubectl.get("pod", "fill")["status"]["phase"] == "Succeeded",
        seconds=deadlines.STARTED,
    )


def said(kubectl: Kubectl, job: str) -> str:
    """All that the conditions of a job and of its pools say."""
    objects = [kubectl.job(job), *kubectl.items("rolloutpools")]
    return " ".join(
        condition["message"]
        for found in objects
        for condition in found.get("status", {}).get("conditions", [])
    )


def exit_codes(kubectl: Kubectl, container: str) -> set[int]:
    """With which the containers of this name have ended so far."""
    states = [
        status[state]["terminated"]["exitCode"]
        for pod in kubectl.items("pods")
        for status in pod["status"].get("containerStatuses", [])
        for state in ("state", "lastState")
        if status["name"] == container and "terminated" in status.get(state, {})
    ]
    return set(states)


@pytest.mark.vllm
def test_a_job_on_gpus_runs_until_it_finds_none(
    kubectl: Kubectl, devices: list[str], vllm_nodes: list[str], tmp_path: Any
) -> None:
    (job,) = page("gpus")
    (container,) = pod_specs(job)[1]["containers"]
    container["image"] = f"{PREFIX}/worker-vllm:{TAG}"
    # Not all nodes have that image.
    selector = {"kubernetes.io/hostname": vllm_nodes[0]} if vllm_nodes else {}
    fill_models(kubectl, "qwen3-4b", tmp_path, selector=selector)
    kubectl.apply(claim("qwen-checkpoints"))
    check_no_device(kubectl, job, "4 nvidia.com/gpu", "1 nvidia.com/gpu")
    shared = kubectl.get("pod", "qwen-trainer-0")["spec"]["volumes"]
    assert any(volume.get("emptyDir", {}).get("medium") == "Memory" for volume in shared)


def test_a_job_on_npus_runs_until_it_finds_none(
    kubectl: Kubectl, devices: list[str], tmp_path: Any
) -> None:
    (job,) = page("ascend")
    fill_models(kubectl, "qwen3-0.6b", tmp_path)
    check_no_device(kubectl, job, "8 huawei.com/Ascend910", "1 huawei.com/Ascend910")


def check_no_device(kubectl: Kubectl, job: dict[str, Any], trainers: str, rollouts: str) -> None:
    """The pods are admitted and placed, read their volumes, and end for lack of the device.

    Whichever pod says so first ends the job, so each role is seen without the other's devices.
    """
    (pool,) = job["spec"]["rollouts"]
    pool["replicas"] = 1
    beside = deepcopy(job)
    name = beside["metadata"]["name"] = "beside"
    trainer = beside["spec"]["trainer"]
    trainer["device"] = "cpu"
    trainer.pop("checkpoint", None)
    (container,) = trainer["template"]["spec"]["containers"]
    container.pop("resources")
    kubectl.apply(beside)
    until_said(kubectl, name, f"the rollout's container asks for {rollouts}, and this process")
    assert exit_codes(kubectl, "rollout") == {NO_DEVICE}
    kubectl.run("delete", "rljob", name)
    pool["replicas"] = 0
    kubectl.apply(job)
    name = job["metadata"]["name"]
    until_said(kubectl, name, f"the trainer's container asks for {trainers}, and this process")
    assert exit_codes(kubectl, "trainer") == {NO_DEVICE}


def until_said(kubectl: Kubectl, job: str, text: str) -> None:
    try:
        wait_for(text, lambda: text in said(kubectl, job), seconds=deadlines.STARTED)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {said(kubectl, job)}") from error


@pytest.mark.skipif(lifecycle.uses_existing(), reason="the nodes are not ours")
def test_ranks_of_a_pod_share_the_devices_that_it_claims(kubectl: Kubectl) -> None:
    job = example("reverse.yaml", maxSteps=500)
    pod, (rollout,) = job["spec"]["trainer"]["template"]["spec"], pod_specs(job)[1:]
    job["spec"]["trainer"]["processesPerPod"] = 2
    for claiming in (pod, rollout):
        claiming["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE}]
        claiming["containers"][0].setdefault("resources", {})["claims"] = [{"name": "gpus"}]
    with offered(kubectl, ordinary_nodes(kubectl)):
        try:
            kubectl.apply(claim_template(2), job)
            watcher = JobWatcher(kubectl, "reverse")
            watcher.until(lambda seen: seen.step > 2 and seen.ready == 2, seconds=deadlines.STARTED)
            trainer = "reverse-trainer-0"
            assert kubectl.run("exec", trainer, "--", "printenv", VARIABLE) == "yes\n"
            claims = kubectl.items("resourceclaims")
            allocated = [c["status"]["allocation"]["devices"]["results"] for c in claims]
            assert [len(devices) for devices in allocated] == [2, 2, 2]
            own = f"grep -a '^{pod_contract.LOCAL_RANK}='"
            ranks = f"cat /proc/[0-9]*/environ 2>&1 | tr '\\0' '\\n' | {own} | sort -u | wc -l"
            assert kubectl.run("exec", trainer, "--", "sh", "-c", ranks).strip() == "2"
        finally:  # what takes the claims back must still be there
            kubectl.run("delete", "rljob", "reverse", seconds=120)
            wait_for("the claims to be given back", lambda: not kubectl.items("pods"), seconds=120)


def test_a_job_of_several_pools_and_one_that_is_lent_trains_in_all(kubectl: Kubectl) -> None:
    job, lent = page("several-pools")
    kubectl.apply(claim("weights"), job)
    watcher = JobWatcher(kubectl, "mixed")
    watcher.until(lambda seen: len(seen.rewards) == 4, seconds=deadlines.STARTED)
    kubectl.apply(lent)
    kubectl.run("scale", "rolloutpool/mixed-spare", "--replicas=1")
    watcher.until(lambda seen: seen.ready == 7, seconds=deadlines.STARTED)
    groups = kubectl.job("mixed")["status"]["syncGroups"]
    assert {(group["name"], group["engine"]) for group in groups} == {
        ("default", "gloo"),
        ("far", "store"),
    }


def test_rollouts_run_on_spot_nodes_and_the_trainer_does_not(kubectl: Kubectl) -> None:
    (job,) = page("spot-nodes")
    (pool,) = job["spec"]["rollouts"]
    pool["replicas"] = 2
    nodes = ordinary_nodes(kubectl)
    for node in nodes:
        value = "on-demand" if node == nodes[0] else "spot"
        kubectl.run("label", "node", node, f"{LIFECYCLE}={value}", "--overwrite")
    try:
        kubectl.apply(claim("spot-checkpoints"), job)
        JobWatcher(kubectl, "spot").until(
            lambda seen: len(seen.rewards) == 2, seconds=deadlines.STARTED
        )
        where = {pod["spec"]["nodeName"] for pod in kubectl.rollouts("spot")}
        assert kubectl.get("pod", "spot-trainer-0")["spec"]["nodeName"] not in where
    finally:
        for node in nodes:
            kubectl.run("label", "node", node, f"{LIFECYCLE}-")


def test_a_store_whose_package_the_image_lacks_is_named(kubectl: Kubectl) -> None:
    (job,) = page("s3-weights")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "weights-bucket"},
        "stringData": {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    }
    kubectl.apply(secret, job)
    until_said(kubectl, "far", "s3fs")
