"""What the kubelet records of a volume that it cannot mount reaches the job's condition."""

import time

import pytest

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import PODS, RL_JOBS
from tests.apiserver.cluster_user import ClusterUser, eventually, example

TRAINER = "reverse-trainer-0"
NOTE = 'MountVolume.SetUp failed for volume "keys" : secret "hub-keys" not found'
SECONDS = 15.0


def as_kubelet_records(pod: Object) -> Object:
    """Through core/v1, as kubelets do."""
    about = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{TRAINER}.1"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
        "type": "Warning",
        "reason": "FailedMount",
        "message": NOTE,
        "count": 3,
        "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": {"component": "kubelet", "host": "node"},
    }


@pytest.mark.kubernetes("events of core/v1, which kubelets write")
@pytest.mark.usefixtures("direct_operator")
async def test_a_secret_that_is_not_there_is_named_within_seconds(user: ClusterUser) -> None:
    job = example()
    job["spec"]["trainer"]["template"]["spec"]["volumes"] = [
        {"name": "keys", "secret": {"secretName": "hub-keys"}}
    ]
    await user.apply(job)

    async def made() -> Object | None:
        return await user.find(PODS, TRAINER)

    pod = await eventually(made, "the trainer's pod")
    await user.bind(TRAINER)
    user.kubectl("create", "-f", "-", body=as_kubelet_records(pod))

    async def reported() -> str | None:
        found = await user.condition(RL_JOBS, "reverse", "TrainerReady")
        return found["message"] if found and found["reason"] == "MountFailed" else None

    message = await eventually(reported, "the condition of the trainer", seconds=SECONDS)
    assert message == (
        "spec.trainer.template.spec.volumes[0]: volume 'keys' of pod reverse-trainer-0 cannot be "
        'mounted: secret "hub-keys" not found; create the Secret, or correct its name'
    )
