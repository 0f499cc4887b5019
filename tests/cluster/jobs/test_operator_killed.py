"""The operator is killed in mid-scale, and the world converges as if nothing had happened."""

import pytest

from hack.cluster.examples import example
from hack.cluster.installation import SYSTEM_NAMESPACE
from hack.cluster.kubectl import Kubectl
from hack.demo.job_progress import JobWatcher
from tests.cluster.jobs import deadlines

JOB, POOL = "reverse", "reverse-cpu"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_an_operator_killed_in_mid_scale_leaves_one_epoch_with_all_members(
    kubectl: Kubectl,
) -> None:
    kubectl.apply(example("reverse.yaml", maxSteps=5000))
    job = JobWatcher(kubectl, JOB)
    job.until(lambda s: s.step >= 5 and s.ready == 2, seconds=deadlines.STARTED)
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=4")
    system = kubectl.within(SYSTEM_NAMESPACE)
    # No grace: the kubelet sends SIGKILL.
    system.run("delete", "pod", "--all", "--grace-period=0", "--force")
    seen = job.until(lambda s: s.ready == 4 and s.members == 5, seconds=deadlines.STARTED)
    group = kubectl.job(JOB)["status"]["syncGroups"][0]
    assert group["phase"] == "Stable"
    assert group["epoch"] == seen.history[-1]["epoch"]
    epochs = [entry["epoch"] for entry in seen.history]
    assert epochs == sorted(set(epochs)), "one roster an epoch"
    goal = seen.step + 5
    seen = job.until(lambda s: s.step >= goal, seconds=deadlines.REACTION)
    assert seen.epoch == group["epoch"], "nothing more happens to the group"
