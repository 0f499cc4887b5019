"""What an operator of the cluster does to a running job: each ends in training, or says what to do.

One job goes through all of it, in the order of the tests.
"""

import copy
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hack.cluster.errors import KubectlError
from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl, name_of, wait_for
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.soak import host_inspection
from rollcall_operator.api import labels
from tests.cluster.jobs import deadlines
from tests.cluster.jobs.tiny_qwen3 import TRAINED, claim

JOB, POOL, TRAINER = "reverse", "reverse-cpu", "reverse-trainer-0"
CERTIFICATE = "reverse-trainer-tls"
CLAIM = TRAINED.name
CONTACT_SECONDS = 15.0
CHECKPOINT_STEPS = 10
_SET_BY_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(deadlines.WHOLE_TEST, func_only=True)]


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job, where it runs, and what it was applied from."""

    kubectl: Kubectl
    watcher: JobWatcher
    manifest: dict[str, Any]

    def trains(self, *, after: int = 0, seconds: float = deadlines.STARTED) -> JobProgress:
        """Wait until two ready rollouts take part in steps after `after`."""
        return self.watcher.until(
            lambda seen: seen.step > after and seen.ready == 2 and seen.phase == "Running",
            seconds=seconds,
        )

    def saved(self) -> int:
        """Train until a checkpoint is written; the step that the trainer had then."""
        return self.trains(after=self.trains().step + 2 * CHECKPOINT_STEPS).step

    def condition(self, kind: str, reason: str, *, seconds: float) -> dict[str, Any]:
        """Wait until a condition has this reason."""

        def look() -> dict[str, Any] | None:
            conditions = self.kubectl.job(JOB).get("status", {}).get("conditions", [])
            return next((c for c in conditions if (c["type"], c["reason"]) == (kind, reason)), None)

        return wait_for(f"{kind}: {reason}", look, seconds=seconds)

    def certificate(self) -> str:
        """The uid of the Secret with the trainer's certificate; empty if there is none."""
        found = self.kubectl.run(
            "get", "secret", CERTIFICATE, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"
        )
        return found.strip()

    def trainer(self) -> dict[str, Any]:
        """The pod of rank 0."""
        return self.kubectl.get("pod", TRAINER)

    def started_at(self) -> int:
        """The step that the trainer of now started at."""

        def look() -> int | None:
            logs = self.kubectl.run("logs", TRAINER)
            return next(
                (
                    int(line.partition("starts at step ")[2].split('"')[0])
                    for line in logs.splitlines()
                    if "starts at step " in line
                ),
                None,
            )

        return wait_for("the trainer's first step", look, seconds=deadlines.REACTION)


@pytest.fixture(scope="module")
def job(installed: Kubectl) -> Iterator[RunningJob]:
    """The job of examples/reverse.yaml with checkpoints on a claim, without an end."""
    kubectl = installed.fresh_namespace("e2e-day-two")
    manifest = example("reverse.yaml", maxSteps=1_000_000)
    volume = {"persistentVolumeClaim": {"claimName": CLAIM}}
    checkpoint = {"everySteps": CHECKPOINT_STEPS, "volume": volume}
    manifest["spec"]["trainer"]["checkpoint"] = checkpoint
    kubectl.apply(claim(), manifest)
    running = RunningJob(kubectl, JobWatcher(kubectl, JOB), manifest)
    running.trains()
    yield running
    kubectl.run("delete", "namespace", "e2e-day-two", "--wait=false")


def test_a_coordinator_that_hangs_is_reported_in_time(job: RunningJob) -> None:
    job.condition("CoordinatorConnected", "Connected", seconds=30)
    workers = host_inspection.workers(job.kubectl.namespace)
    (victim,) = (worker for worker in workers if worker.role == labels.TRAINER)
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        since = time.monotonic()
        job.condition("CoordinatorConnected", "CoordinatorSilent", seconds=CONTACT_SECONDS)
        print(f"reported {time.monotonic() - since:.1f} s after SIGSTOP")
        assert job.kubectl.job(JOB)["status"]["phase"] == "Unknown"
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    job.condition("CoordinatorConnected", "Connected", seconds=30)
    job.trains()


def test_a_quota_that_refuses_pods_is_reported_with_its_cure(job: RunningJob) -> None:
    pods = len(job.kubectl.items("pods"))
    job.kubectl.run("create", "quota", "small", f"--hard=pods={pods}")
    try:
        job.kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=3")
        found = job.condition("RolloutsReady", "PodsRefused", seconds=30)
        assert found["message"].startswith(
            "spec.rollouts[0].template: the API server refuses pods of Deployment/reverse-cpu: "
            "exceeded quota: small"
        )
        assert "raise the ResourceQuota" in found["message"]
    finally:
        job.kubectl.run("delete", "quota", "small")
    job.kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=2")
    job.trains()


def test_a_changed_trainer_restarts_by_annotation_from_its_checkpoint(job: RunningJob) -> None:
    step = job.saved()
    before = job.trainer()["metadata"]["uid"]
    containers = job.manifest["spec"]["trainer"]["template"]["spec"]["containers"]
    containers[0]["env"].append({"name": "CHANGED", "value": "yes"})
    job.kubectl.apply(job.manifest)
    job.condition("TrainerUpToDate", "RestartNeeded", seconds=30)
    assert job.trainer()["metadata"]["uid"] == before, "nothing restarts by itself"
    certificate = job.certificate()
    job.kubectl.run("delete", "secret", CERTIFICATE)
    job.kubectl.run("annotate", "rljob", JOB, "rollcall.dev/restart-trainer=now")
    job.condition("TrainerUpToDate", "UpToDate", seconds=deadlines.REACTION)
    wait_for(
        "the Secret for which the new pod waits",
        lambda: job.certificate() not in {"", certificate},
        seconds=deadlines.REACTION,
    )
    wait_for(  # the Secret is made once the pod before has ended, which may still be there
        "another trainer pod",
        lambda: job.trainer()["metadata"]["uid"] != before,
        seconds=deadlines.REACTION,
    )
    assert job.started_at() >= step - 2 * CHECKPOINT_STEPS
    job.trains(after=step)
    restarts = [
        pod["status"]["containerStatuses"][0]["restartCount"] for pod in job.kubectl.rollouts(JOB)
    ]
    assert restarts == [0, 0], "the rollouts ran on"


@pytest.mark.alone  # all pods of the node leave it
def test_kubectl_drain_of_the_trainers_node_goes_on_from_its_checkpoint(job: RunningJob) -> None:
    step = job.saved()
    before = job.trainer()
    node, kubectl = before["spec"]["nodeName"], job.kubectl
    drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
    selector = f"{labels.JOB}={JOB},{labels.ROLE}={labels.TRAINER}"
    kubectl.run("create", "pdb", "trainer", f"--selector={selector}", "--min-available=1")
    try:
        with pytest.raises(KubectlError, match="timeout reached"):
            kubectl.run(*drain, "--timeout=15s", seconds=deadlines.REACTION)
        assert job.trainer()["metadata"]["uid"] == before["metadata"]["uid"], "it is protected"
        kubectl.run("delete", "pdb", "trainer")
        kubectl.run(*drain, f"--timeout={deadlines.REACTION}s", seconds=deadlines.REACTION + 10)
    finally:
        kubectl.run("delete", "pdb", "trainer", "--ignore-not-found")
        kubectl.run("uncordon", node)
    job.trains(after=step)
    assert job.trainer()["metadata"]["uid"] != before["metadata"]["uid"]
    assert job.started_at() >= step - 2 * CHECKPOINT_STEPS


def test_orphans_are_adopted_and_training_goes_on(job: RunningJob) -> None:
    step = job.saved()
    pool = job.kubectl.get("rolloutpool", POOL)["metadata"]["uid"]
    job.kubectl.run("delete", "rljob", JOB, "--cascade=orphan", seconds=deadlines.REACTION)
    job.kubectl.apply(job.manifest)
    found = job.condition("Validated", "InvalidSpec", seconds=30)
    assert "rollcall.dev/adopt-children=true" in found["message"]
    job.kubectl.run("annotate", "rljob", JOB, "rollcall.dev/adopt-children=true")
    job.trains(after=step)
    assert job.kubectl.get("rolloutpool", POOL)["metadata"]["uid"] == pool
    assert job.started_at() > 0, "from the checkpoint of the first job"


def test_a_restored_backup_ends_in_a_job_that_trains(job: RunningJob) -> None:
    step = job.saved()
    kinds = "rolloutpools,services,statefulsets,deployments,rljobs"
    saved = job.kubectl.items(kinds)
    job.kubectl.run("delete", "rljob", JOB, seconds=deadlines.REACTION)
    wait_for(
        "no pods", lambda: not job.kubectl.items("pods") or None, seconds=deadlines.REACTION
    )  # what a cluster that was lost has
    for item in saved:
        body = copy.deepcopy(item)
        body.pop("status", None)
        for name in _SET_BY_THE_SERVER:
            body["metadata"].pop(name, None)
        job.kubectl.run("create", "-f", "-", text=json.dumps(body))
    job.trains(after=step)
    uid = job.kubectl.job(JOB)["metadata"]["uid"]
    owned = job.kubectl.items("rolloutpools")
    assert [(name_of(pool), pool["metadata"]["ownerReferences"][0]["uid"]) for pool in owned] == [
        (POOL, uid)
    ]
