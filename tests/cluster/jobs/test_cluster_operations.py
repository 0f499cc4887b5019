"""What administrators do to a cluster while a job runs: autoscale, restart, drain, reinstall.

One job runs through all cases; after each, the same trainer pod trains on with ready rollouts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hack.cluster import installation
from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl, is_ready, name_of, wait_for
from hack.demo.job_progress import JobProgress, JobWatcher
from tests.cluster.jobs import deadlines

JOB, POOL = "reverse", "reverse-cpu"
pytestmark = [pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(deadlines.WHOLE_TEST)]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job without an end, and the trainer pod that it began with."""

    kubectl: Kubectl
    watcher: JobWatcher
    trainer: dict[str, Any]

    def settled(self, *, ready: int, seconds: float = deadlines.STARTED) -> JobProgress:
        """Wait until the pool has that many rollouts, all ready members of one session."""
        return self.watcher.until(
            lambda seen: seen.ready == len(seen.rollouts) == ready and seen.members == ready + 1,
            seconds=seconds,
        )

    def trains_on(self, *, steps: int = 5) -> JobProgress:
        """Wait for more steps, in the trainer pod that the job began with."""
        goal = self.progress().step + steps
        seen = self.watcher.until(lambda seen: seen.step >= goal, seconds=deadlines.REACTION)
        trainer = self.kubectl.get("pod", name_of(self.trainer))
        assert trainer["metadata"]["uid"] == self.trainer["metadata"]["uid"]
        assert self.kubectl.job(JOB)["status"]["trainer"]["restarts"] == 0
        return seen

    def progress(self) -> JobProgress:
        """The job as it is now."""
        return self.watcher.until(lambda _: True, seconds=10)

    def scale(self, replicas: int) -> JobProgress:
        """Scale the pool and wait until it has settled."""
        self.kubectl.run("scale", f"rolloutpool/{POOL}", f"--replicas={replicas}")
        return self.settled(ready=replicas)


@pytest.fixture(scope="module")
def job(installed: Kubectl) -> Iterator[RunningJob]:
    """The job of examples/reverse.yaml with two rollouts, without an end."""
    namespace = "e2e-cluster-operations"
    kubectl = installed.fresh_namespace(namespace)
    kubectl.apply(example("reverse.yaml", maxSteps=1_000_000))
    watcher = JobWatcher(kubectl, JOB)
    watcher.until(lambda seen: seen.step >= 5 and seen.ready == 2, seconds=deadlines.STARTED)
    yield RunningJob(kubectl, watcher, kubectl.get("pod", f"{JOB}-trainer-0"))
    installed.run("delete", "namespace", namespace, "--wait=false")


def test_kubectl_autoscale_scales_the_pool_to_its_minimum(job: RunningJob) -> None:
    job.settled(ready=2)
    job.kubectl.run("autoscale", f"rolloutpool/{POOL}", "--min=3", "--max=4", "--cpu=80%")
    try:
        seen = job.settled(ready=3)
    finally:
        job.kubectl.run("delete", "horizontalpodautoscaler", POOL)
    assert seen.history[-1]["cause"] == "MembersJoined"
    assert job.kubectl.get("rolloutpool", POOL)["spec"]["replicas"] == 3
    job.trains_on()


def test_kubectl_rollout_restart_replaces_every_rollout(job: RunningJob) -> None:
    before = set(job.scale(2).rollouts)
    job.kubectl.run("rollout", "restart", f"deployment/{POOL}")
    job.kubectl.run("rollout", "status", f"deployment/{POOL}", "--timeout=120s", seconds=130)
    seen = job.settled(ready=2)
    assert not before & set(seen.rollouts)
    job.trains_on()


def test_kubectl_drain_moves_the_rollouts_of_a_node(job: RunningJob) -> None:
    nodes = {node_of(pod) for pod in job.kubectl.rollouts(JOB)} - {node_of(job.trainer)}
    if not nodes:
        job.scale(4)  # the scheduler spreads them
        nodes = {node_of(pod) for pod in job.kubectl.rollouts(JOB)} - {node_of(job.trainer)}
    node = nodes.pop()
    moved = {name_of(pod) for pod in job.kubectl.rollouts(JOB) if node_of(pod) == node}
    replicas = len(job.progress().rollouts)
    try:
        job.kubectl.run(
            *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"),
            seconds=130,
        )
        seen = job.settled(ready=replicas)
        assert not moved & set(seen.rollouts)
        assert all(node_of(pod) != node for pod in job.kubectl.rollouts(JOB))
        job.trains_on()
    finally:
        job.kubectl.run("uncordon", node)


def test_helm_uninstall_and_reinstall_leave_the_job_training(job: RunningJob) -> None:
    before = job.scale(2)
    installation.uninstall()
    try:
        job.kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=3")
        away = job.trains_on()
        assert set(away.rollouts) == set(before.rollouts), "there is no operator to add one"
    finally:
        installation.install(job.kubectl)
    seen = job.settled(ready=3)
    assert set(before.rollouts) < set(seen.rollouts)
    assert seen.epoch == before.epoch + 1, "one new member, one epoch"
    wait_for(
        "the newcomer to be ready",
        lambda: all(map(is_ready, job.kubectl.rollouts(JOB))),
        seconds=60,
    )
    job.trains_on()


def node_of(pod: dict[str, Any]) -> str:
    """The node that a pod runs on."""
    return str(pod["spec"]["nodeName"])
