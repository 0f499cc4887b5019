"""A task of the user's own, from a ConfigMap, is learned without building an image."""

import pytest

from hack.cluster.kubectl import ROOT, Kubectl, with_images
from hack.demo.job_progress import JobProgress, JobWatcher

JOB = "own-task"
LEARNED = 0.7  # chance is 0.07; the example reaches it after some 150 of its 300 steps


@pytest.mark.cluster
@pytest.mark.timeout(500)
def test_the_rollouts_learn_a_task_from_a_config_map(kubectl: Kubectl) -> None:
    rendered = kubectl.run("kustomize", str(ROOT / "examples" / "own-task"))
    kubectl.run("apply", "--filename", "-", text=with_images(rendered))
    job = JobWatcher(kubectl, JOB)
    first = job.until(lambda seen: len(seen.rewards) == 2, seconds=180)
    assert max(first.rewards.values()) < LEARNED
    job.until(lambda seen: both_reach(seen, LEARNED), seconds=240)


def both_reach(seen: JobProgress, reward: float) -> bool:
    """Whether the samples that each of the two rollouts generated itself reach this mean reward."""
    return len(seen.rewards) == 2 and min(seen.rewards.values()) >= reward
