"""A volume that cannot be mounted reaches the job's conditions with pod, volume and cure."""

import pytest

from rollcall_operator.plan.model import PodFacts
from rollcall_operator.plan.status.failed_mounts import (
    MOUNT_SECONDS,
    describe_failed_mount,
    is_slow_to_mount,
    most_telling,
    mount_wait,
)
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

NO_SECRET = 'MountVolume.SetUp failed for volume "keys" : secret "hub-keys" not found'
ALL_WAIT = (
    "Unable to attach or mount volumes: unmounted volumes=[keys], unattached volumes=[], failed to "
    "process volumes=[]: timed out waiting for the condition"
)
VOLUMES = [
    {"name": "scratch", "emptyDir": {}},
    {"name": "keys", "secret": {"secretName": "hub-keys"}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "rows"}},
]


def said(message: str) -> str:
    pod = PodFacts(name="p-1", uid="u", role="rollout", mount_failure=message)
    template = {"spec": {"containers": [], "volumes": VOLUMES}}
    return describe_failed_mount(pod, template, "spec.trainer.template")


def test_the_condition_names_field_volume_pod_cause_and_cure() -> None:
    simulator = JobSimulator({"spec.trainer.template.spec.volumes": VOLUMES})
    simulator.to_running()
    failed = {"mounting_since": simulator.now, "mount_failure": NO_SECRET}
    simulator.change(simulator.trainer, phase="Pending", running=False, ready=False, **failed)
    simulator.converge(5)
    condition = simulator.condition("TrainerReady")
    assert (condition["status"], condition["reason"]) == ("False", "MountFailed")
    assert condition["message"] == (
        "spec.trainer.template.spec.volumes[1]: volume 'keys' of pod bad-trainer-0 cannot be "
        'mounted: secret "hub-keys" not found; create the Secret, or correct its name'
    )


@pytest.mark.parametrize(
    ("message", "begins", "cure"),
    [
        pytest.param(
            'MountVolume.SetUp failed for volume "pvc-8f14" : mount failed: exit status 32',
            "volumes[2]: volume 'data' of pod p-1 cannot be mounted: mount failed: exit status 32",
            "kubectl describe pod p-1",
            id="a claim's PersistentVolume",
        ),
        pytest.param(
            'Multi-Attach error for volume "pvc-8f14" Volume is already used by pod(s) p-0',
            "volumes[2]: volume 'data' of pod p-1",
            "ReadWriteMany",
            id="in use on another node",
        ),
        pytest.param(
            ALL_WAIT, "volumes[1]: volume 'keys' of pod p-1", "storage's server", id="no cause"
        ),
        pytest.param(
            'MountVolume.SetUp failed for volume "rollcall-trust" : configmap "t" not found',
            "spec.trainer.template.spec: volume 'rollcall-trust'",
            "create the ConfigMap",
            id="not of the template",
        ),
        pytest.param(
            'MountVolume.SetUp failed for volume "keys" : failed to sync configmap cache: timed '
            "out waiting for the condition",
            "volumes[1]: volume 'keys' of pod p-1",
            "kubelet could not read it from the API server",
            id="the kubelet has not read it yet",
        ),
        pytest.param("strange", "volume '' of pod p-1", "correct the volume", id="no volume"),
    ],
)
def test_the_volume_is_the_templates(message: str, begins: str, cure: str) -> None:
    assert begins in said(message)
    assert cure in said(message)


def test_a_message_with_a_cause_counts_more_than_a_later_one_without() -> None:
    older = 'MountVolume.SetUp failed for volume "keys" : timeout'
    assert most_telling([(1.0, older), (2.0, NO_SECRET), (9.0, ALL_WAIT)]) == NO_SECRET
    assert most_telling([(9.0, ALL_WAIT)]) == ALL_WAIT
    assert most_telling([]) == ""


def test_a_mount_that_has_only_begun_is_no_problem_yet() -> None:
    pod = PodFacts(name="p", uid="u", role="rollout", mounting_since=100.0)
    assert [is_slow_to_mount(pod, now) for now in (100.0, 104.9, 105.0)] == [False, False, True]
    assert not is_slow_to_mount(PodFacts(name="p", uid="u", role="rollout"), 1e9)


def test_pods_that_mount_are_looked_at_again_though_no_event_comes() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    before = simulator.reconcile().requeue_after
    simulator.change(simulator.pods_of("bad-cpu")[0], mounting_since=simulator.now)
    assert simulator.reconcile().requeue_after == MOUNT_SECONDS
    assert simulator.reconcile(60).requeue_after == 10
    simulator.change(simulator.pods_of("bad-cpu")[0], mounting_since=None)
    assert simulator.reconcile().requeue_after == before


def test_a_pod_that_leaves_is_not_waited_for() -> None:
    pod = PodFacts(name="p", uid="u", role="rollout", mounting_since=1.0, terminating=True)
    assert mount_wait([pod], 100.0) is None
