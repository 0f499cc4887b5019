"""A task of the user's own, from a ConfigMap, is learned without building an image."""

import pytest

from hack.cluster.examples import ROOT, with_images
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobWatcher
from tests.cluster.jobs import deadlines

JOB = "own-task"
LEARNED = 0.7  # chance is 0.07; the example reaches it after some 150 of its 300 steps


@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_the_rollouts_learn_a_task_from_a_config_map(kubectl: Kubectl) -> None:
    rendered = kubectl.run("kustomize", str(ROOT / "examples" / "own-task"))
    kubectl.run("apply", "--filename", "-", text=with_images(rendered))
    job = JobWatcher(kubectl, JOB)
    first = job.until(lambda seen: len(seen.rewards) == 2, seconds=deadlines.STARTED)
    assert max(first.rewards.values()) < LEARNED
    job.until(lambda seen: seen.all_reach(LEARNED, rollouts=2), seconds=deadlines.LEARNED)
