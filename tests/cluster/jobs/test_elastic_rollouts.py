"""The main job on real pods: it learns while rollouts are added, drained, killed and lent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster.examples import example
from hack.cluster.kubectl import Kubectl, is_ready, name_of, wait_for
from hack.demo.job_progress import JobProgress, JobWatcher
from hack.demo.learning_checks import LEARNED, check_epochs, check_learned
from rollcall_operator.plan.children.pod_template import TOKEN_PATH
from rollcall_protocol.pod_contract import TOKEN_FILE
from tests.cluster.jobs import deadlines

MAX_STALENESS = 2
JOB, POOL = "reverse", "reverse-cpu"
TOKEN = f"{TOKEN_PATH}/{TOKEN_FILE}"
CAUSES = {"JobStarted", "MembersJoined", "MemberLost", "ScaledDown"}


@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_a_job_learns_while_rollouts_come_and_go(kubectl: Kubectl) -> None:
    kubectl.apply(example("reverse.yaml", maxSteps=100_000))  # it is over when all have learned
    job = JobWatcher(kubectl, JOB)
    job.until(lambda s: s.step >= 10, seconds=deadlines.STARTED)
    trainer = kubectl.get("pod", f"{JOB}-trainer-0")["metadata"]["uid"]
    for pod in (f"{JOB}-trainer-0", name_of(kubectl.rollouts(JOB)[0])):
        assert kubectl.run("exec", pod, "--", "stat", "-L", "-c", "%a %u", TOKEN) == "600 65532\n"

    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=4")
    seen = job.until(lambda s: s.ready >= 4, seconds=deadlines.STARTED)
    newcomers = dict(seen.rollouts)
    seen = job.until(
        lambda s: all(_samples(s.rollouts[pod]) > 0 for pod in newcomers if pod in s.rollouts),
        seconds=deadlines.REACTION,
    )
    assert set(newcomers) == set(seen.rollouts), "all four serve"

    victim = name_of(kubectl.rollouts(JOB)[0])
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    job.until(lambda s: s.ready >= 4 and victim not in s.rollouts, seconds=deadlines.STARTED)

    kubectl.apply(example("extra-pool.yaml"))
    extra = wait_for(
        "a rollout of the lent pool", lambda: _ready(kubectl, "extra"), seconds=deadlines.STARTED
    )
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=2")
    # Its epoch follows a scale-down by a moment: a job that has learned before waits for it, too.
    job.until(lambda s: s.epoch_causes() >= CAUSES, seconds=deadlines.STARTED)
    seen = job.until(
        lambda s: len(s.rollouts) == s.ready == 3 and s.all_reach(LEARNED, rollouts=3),
        seconds=deadlines.LEARNED,
    )

    check_learned(seen, max_staleness=MAX_STALENESS)
    assert extra in seen.rollouts
    check_epochs(seen, least=4)
    assert seen.epoch_causes() >= CAUSES
    status = kubectl.job(JOB)["status"]
    assert status["trainer"]["restarts"] == 0, kubectl.run(
        "logs", f"{JOB}-trainer-0", "--previous", "--tail=100"
    )
    assert kubectl.get("pod", f"{JOB}-trainer-0")["metadata"]["uid"] == trainer
    check_command(kubectl, seen)


def check_command(kubectl: Kubectl, seen: JobProgress) -> None:
    """`rollcall` says what the cluster says, and drains a rollout."""
    said = json.loads(rollcall(kubectl, "status", JOB, "--output", "json"))
    assert (said["phase"], said["trainer"]["ready"]) == ("Running", 1)
    assert {one["name"] for one in said["rollouts"]} >= set(seen.rollouts)
    assert {epoch["cause"] for epoch in said["epochs"]} >= CAUSES
    assert f"{JOB}: Running" in rollcall(kubectl, "status", JOB)
    lines = rollcall(kubectl, "logs", JOB, "--output", "json").splitlines()
    assert {json.loads(line)["pod"] for line in lines} >= {f"{JOB}-trainer-0", *seen.rollouts}
    victim = next(iter(seen.rollouts))
    assert f"{victim} drains: job {JOB}" in rollcall(kubectl, "drain", victim)
    pods = (name_of(pod) for pod in kubectl.rollouts(JOB))
    assert victim not in pods, "it is being deleted"


def rollcall(kubectl: Kubectl, *arguments: str) -> str:
    """What the command of users writes."""
    cluster = ["--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace]
    command = [str(Path(sys.executable).with_name("rollcall")), *arguments, *cluster]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_without_weight_sync_the_verdict_fails(kubectl: Kubectl) -> None:
    # On a busy machine one rollout starts while the other has already sampled for 100 steps.
    kubectl.apply(example("reverse-no-sync.yaml", maxSteps=10_000))
    job = JobWatcher(kubectl, "reverse-no-sync")
    # With weight sync the reward is above 0.7 after as many steps.
    seen = job.until(lambda s: s.step >= 100 and len(s.rewards) == 2, seconds=deadlines.LEARNED)
    assert all(reward < 0.3 for reward in seen.rewards.values()), seen.rewards
    with pytest.raises(AssertionError, match="reward of its own samples"):
        check_learned(seen, max_staleness=MAX_STALENESS)


def _samples(metrics: dict[str, float]) -> float:
    return metrics.get("rollcall_rollout_samples_total", 0)


def _ready(kubectl: Kubectl, pool: str) -> str | None:
    pods = kubectl.items("pods", "--selector", f"rollcall.dev/pool={pool}")
    return next((name_of(pod) for pod in pods if is_ready(pod)), None)
