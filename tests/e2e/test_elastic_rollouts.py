"""The main job on real pods: it learns while rollouts are added, drained, killed and lent."""

import pytest

from hack.cluster.kubectl import Kubectl, example, is_ready, name_of, wait_for
from hack.demo.job_progress import JobWatcher
from hack.demo.learning_checks import check_epochs, check_learned
from rollcall_operator.plan.children.pod_template import TOKEN_PATH
from rollcall_protocol.pod_contract import TOKEN_FILE

MAX_STALENESS = 2
JOB, POOL = "reverse", "reverse-cpu"
TOKEN = f"{TOKEN_PATH}/{TOKEN_FILE}"


@pytest.mark.cluster
@pytest.mark.timeout(1000)
def test_a_job_learns_while_rollouts_come_and_go(kubectl: Kubectl) -> None:
    kubectl.apply(example("reverse.yaml"))
    job = JobWatcher(kubectl, JOB)
    job.until(lambda s: s.step >= 10, seconds=180)
    trainer = kubectl.get("pod", f"{JOB}-trainer-0")["metadata"]["uid"]
    for pod in (f"{JOB}-trainer-0", name_of(kubectl.rollouts(JOB)[0])):
        assert kubectl.run("exec", pod, "--", "stat", "-L", "-c", "%a %u", TOKEN) == "600 65532\n"

    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=4")
    seen = job.until(lambda s: s.ready >= 4, seconds=240)
    newcomers = dict(seen.rollouts)
    seen = job.until(
        lambda s: all(_samples(s.rollouts[pod]) > 0 for pod in newcomers if pod in s.rollouts),
        seconds=60,
    )
    assert set(newcomers) == set(seen.rollouts), "all four serve"

    victim = name_of(kubectl.rollouts(JOB)[0])
    kubectl.run("delete", "pod", victim, "--grace-period=0", "--force")
    job.until(lambda s: s.ready >= 4 and victim not in s.rollouts, seconds=240)

    kubectl.apply(example("extra-pool.yaml"))
    extra = wait_for("a rollout of the lent pool", lambda: _ready(kubectl, "extra"), seconds=180)
    kubectl.run("scale", f"rolloutpool/{POOL}", "--replicas=2")
    seen = job.until(lambda s: s.phase == "Succeeded", seconds=700)
    seen = job.until(lambda s: len(s.rollouts) == 3 and s.ready == 3, seconds=60)

    check_learned(seen, max_staleness=MAX_STALENESS)
    assert extra in seen.rollouts
    check_epochs(seen, least=4)
    causes = {entry["cause"] for entry in seen.history}
    assert {"JobStarted", "MembersJoined", "MemberLost", "ScaledDown"} <= causes
    status = kubectl.get("rljob", JOB)["status"]
    assert status["trainer"]["restarts"] == 0
    assert kubectl.get("pod", f"{JOB}-trainer-0")["metadata"]["uid"] == trainer


@pytest.mark.cluster
@pytest.mark.timeout(1000)
def test_without_weight_sync_the_verdict_fails(kubectl: Kubectl) -> None:
    kubectl.apply(example("reverse-no-sync.yaml"))
    job = JobWatcher(kubectl, "reverse-no-sync")
    seen = job.until(lambda s: s.phase == "Succeeded", seconds=700)
    assert len(seen.rewards) == 2
    assert all(reward < 0.3 for reward in seen.rewards.values()), seen.rewards
    with pytest.raises(AssertionError, match="reward of its own samples"):
        check_learned(seen, max_staleness=MAX_STALENESS)


def _samples(metrics: dict[str, float]) -> float:
    return metrics.get("rollcall_rollout_samples_total", 0)


def _ready(kubectl: Kubectl, pool: str) -> str | None:
    pods = kubectl.items("pods", "--selector", f"rollcall.dev/pool={pool}")
    return next((name_of(pod) for pod in pods if is_ready(pod)), None)
