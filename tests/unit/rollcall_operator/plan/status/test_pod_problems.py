"""Why a pod is not ready: the field, what is wrong, what to do."""

from typing import Any

import pytest

from rollcall_operator.plan.model import PodFacts
from rollcall_operator.plan.status.pod_problems import find_problem

TEMPLATE = {
    "spec": {
        "initContainers": [{"name": "fetch", "image": "fetcher"}],
        "containers": [{"name": "sidecar", "image": "s"}, {"name": "rollout", "image": "reg/i:1"}],
    }
}
CONTAINER = "spec.rollouts[0].template.spec.containers[1]"


def problem_of(**facts: Any) -> tuple[str, str] | None:
    pod = PodFacts(name="p-1", uid="u", **{"role": "rollout", "container": "rollout", **facts})
    found = find_problem(pod, TEMPLATE, "spec.rollouts[0].template")
    return None if found is None else (found.reason.value, found.message)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({}, id="not there yet"),
        pytest.param({"waiting_reason": "ContainerCreating"}, id="being made"),
        pytest.param({"running": True}, id="runs and is not ready yet"),
        pytest.param({"ready": True, "restarts": 5, "exit_code": 1}, id="ready again"),
    ],
)
def test_no_problem(facts: dict[str, Any]) -> None:
    assert problem_of(**facts) is None


@pytest.mark.parametrize(
    ("facts", "reason", "parts"),
    [
        pytest.param(
            {"waiting_reason": "ImagePullBackOff", "waiting_message": "Back-off pulling"},
            "ImagePullFailed",
            (f"{CONTAINER}.image: image 'reg/i:1' of pod p-1 cannot be pulled", "imagePullSecrets"),
            id="image",
        ),
        pytest.param(
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": "no secret x"},
            "CannotStart",
            (f"{CONTAINER}: container rollout of pod p-1 cannot start", "no secret x"),
            id="cannot start",
        ),
        pytest.param(
            {"exit_code": 1, "restarts": 1, "running": True},
            "Restarting",
            (
                f"{CONTAINER}: container rollout of pod p-1 ended with exit code 1",
                "kubectl logs p-1",
            ),
            id="one restart",
        ),
        pytest.param(
            {"exit_code": 1, "exit_message": "x", "waiting_reason": "CrashLoopBackOff"},
            "CrashLoop",
            ("exit code 1: x", "correct its command"),
            id="crash loop",
        ),
        pytest.param(
            {"exit_code": 64, "exit_message": "spec.model.path: none"},
            "BadConfig",
            ("spec.model.path: none (pod p-1)",),
            id="settings",
        ),
        pytest.param(
            {"exit_code": 65, "restarts": 2},
            "Restarting",
            ("another trainer pod has taken over", "nothing needs to be done"),
            id="fenced",
        ),
        pytest.param(
            {"exit_code": 137, "exit_message": "OOMKilled, it", "oom_killed": True, "restarts": 2},
            "OutOfMemory",
            (
                f"{CONTAINER}.resources.limits.memory: container rollout of pod p-1 ended with",
                "exit code 137: OOMKilled",
                "raise the limit, or lower engine.config.concurrency",
            ),
            id="killed for its memory",
        ),
        pytest.param(
            {"exit_code": 137, "oom_killed": True, "role": "trainer"},
            "OutOfMemory",
            ("maxTokensPerMicrobatch", "activationCheckpointing: full", "offload: none"),
            id="a trainer killed for its memory",
        ),
        pytest.param(
            {"exit_code": 66, "exit_message": "spec.trainer.engine.config: too little"},
            "OutOfMemory",
            ("spec.trainer.engine.config: too little (pod p-1)",),
            id="a worker that noticed it",
        ),
        pytest.param(
            {"unschedulable": "0/2 nodes: Insufficient cpu"},
            "Unschedulable",
            ("spec.rollouts[0].template.spec: pod p-1", "Insufficient cpu", "requests"),
            id="no room",
        ),
        pytest.param(
            {"init": True, "container": "fetch", "exit_code": 2, "restarts": 2},
            "CrashLoop",
            ("spec.rollouts[0].template.spec.initContainers[0]: container fetch of pod p-1",),
            id="init container",
        ),
    ],
)
def test_problems(facts: dict[str, Any], reason: str, parts: tuple[str, ...]) -> None:
    found = problem_of(**facts)
    assert found is not None
    assert found[0] == reason
    for part in parts:
        assert part in found[1]


def test_the_words_stay_the_same_while_the_kubelet_backs_off() -> None:
    cause = 'failed to pull and unpack image "reg/i:1": not found'
    first = problem_of(waiting_reason="ErrImagePull", waiting_message=cause)
    backing_off = f'Back-off pulling image "reg/i:1": ErrImagePull: {cause}'
    assert problem_of(waiting_reason="ImagePullBackOff", waiting_message=backing_off) == first


def test_a_long_story_is_cut_to_its_end() -> None:
    found = problem_of(exit_code=1, exit_message="x" * 5000 + "the point")
    assert found is not None
    assert len(found[1]) < 1000
    assert "the point" in found[1]


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ('persistentvolumeclaim "saved" not found', "create the PersistentVolumeClaim"),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "kubectl describe pvc says why",
        ),
        ("0/3 nodes are available: 3 Insufficient cpu.", "change its resource requests"),
    ],
)
def test_what_the_scheduler_says_has_its_cure(message: str, cure: str) -> None:
    found = problem_of(unschedulable=message)
    assert found is not None
    assert f"{message}; {cure}" in found[1]
