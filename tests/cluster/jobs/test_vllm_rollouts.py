"""examples/reverse-vllm.yaml on real pods: vLLM generates, rollouts come and go, and it learns."""

from typing import Any

import pytest

from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl, name_of
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.learning_checks import LEARNED, check_epochs
from tests.cluster.jobs import deadlines

JOB, POOL = "reverse-vllm", "reverse-vllm-vllm"
STEPS_TO_LEARN = 150  # it takes about 80
CONTROL_STEPS = 60  # by when the job that learns is well above 0.5
CAUSES = {"JobStarted", "MembersJoined", "MemberLost"}

# Without the fixtures: one of them may build an image.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True),
]


def job_of(nodes: list[str], **algorithm: Any) -> dict[str, Any]:
    """The example with one rollout, on a node that has the image."""
    manifest = example("reverse-vllm.yaml", **algorithm)
    (pool,) = manifest["spec"]["rollouts"]
    pool["replicas"] = 1
    if nodes:
        pool["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": nodes[0]}
    return manifest


def test_rollouts_on_vllm_learn_over_a_scale_up_and_a_kill(
    kubectl: Kubectl, vllm_nodes: list[str]
) -> None:
    kubectl.apply(job_of(vllm_nodes, maxSteps=5000))
    job = JobWatcher(kubectl, JOB)
    first = job.until(lambda seen: bool(seen.rewards), seconds=deadlines.LEARNED)
    assert max(first.rewards.values()) < 0.5
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=2")
    both = job.until(lambda seen: seen.ready == 2, seconds=deadlines.LEARNED)

    victim = name_of(kubectl.rollouts(JOB)[0])
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    learned = job.until(
        lambda seen: (
            victim not in seen.rollouts and seen.epoch_causes() >= CAUSES and has_learned(seen)
        ),
        seconds=deadlines.LEARNED,
    )
    assert both.step < learned.step <= STEPS_TO_LEARN
    check_epochs(learned, least=3)
    assert kubectl.job(JOB)["status"]["trainer"]["restarts"] == 0

    pod = next(pod for pod, reward in learned.rewards.items() if reward >= LEARNED)
    metrics = kubectl.metrics(pod)
    assert metrics["vllm:num_requests_running"] >= 0
    shared = kubectl.run("exec", pod, "--", "df", "--output=target,fstype", "/dev/shm")
    assert shared.split()[-2:] == ["/dev/shm", "tmpfs"]


def has_learned(seen: JobProgress) -> bool:
    """Whether the last 256 samples of a rollout are right."""
    return any(reward >= LEARNED for reward in seen.rewards.values())


def test_without_weight_sync_vllm_learns_nothing(kubectl: Kubectl, vllm_nodes: list[str]) -> None:
    manifest = job_of(vllm_nodes, maxSteps=CONTROL_STEPS)
    manifest["spec"]["weightSync"] = {"enabled": False}
    kubectl.apply(manifest)
    seen = JobWatcher(kubectl, JOB).until(
        lambda s: s.phase == "Succeeded", seconds=deadlines.LEARNED
    )
    assert len(seen.rewards) == 1
    assert all(reward < 0.3 for reward in seen.rewards.values()), seen.rewards
