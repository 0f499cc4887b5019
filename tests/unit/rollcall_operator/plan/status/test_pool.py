"""The status of a pool, for people and for autoscalers."""

from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import Stage


def test_the_selector_is_there_from_the_first_write_on() -> None:
    stage = Stage()
    stage.reconcile()
    stage.reconcile()
    assert stage.pools["bad-cpu"]["status"]["selector"] == (
        "rollcall.dev/job=bad,rollcall.dev/role=rollout,rollcall.dev/pool=bad-cpu"
    )


def test_a_pool_has_two_status_writes_until_it_is_ready() -> None:
    stage = Stage()
    stage.to_running()
    assert stage.writes["pool status"] == 2
    status = stage.pools["bad-cpu"]["status"]
    numbers = [status[key] for key in ("replicas", "readyReplicas", "inSync", "epoch")]
    assert numbers == [2, 2, 2, 1]
    assert stage.pool_condition("bad-cpu", "Ready")["status"] == "True"


def test_weight_versions_are_throttled_like_progress() -> None:
    stage = Stage()
    stage.to_running()
    stage.converge(60)
    before = stage.writes["pool status"]
    for step in range(30):
        stage.report(step=step)
        stage.reconcile(1)
    assert stage.writes["pool status"] - before <= 3
    assert stage.pools["bad-cpu"]["status"]["weightVersion"]["min"] >= 19


def test_stale_and_leaving_rollouts_are_counted() -> None:
    stage = Stage({"spec.rollouts[0].replicas": 3})
    stage.to_running()
    first, second, _ = stage.pods_of("bad-cpu")
    stage.change(first, terminating=True)
    stage.report(states={second.uid: MemberState.STALE})
    stage.converge(20)
    status = stage.pools["bad-cpu"]["status"]
    counts = [status[key] for key in ("replicas", "stale", "draining", "inSync")]
    assert counts == [2, 1, 1, 1]


def test_trouble_is_told_with_the_path_in_the_pool() -> None:
    stage = Stage()
    stage.converge()
    stage.schedule()
    pod = stage.pods_of("bad-cpu")[0]
    stage.change(pod, waiting_reason="ImagePullBackOff", waiting_message="Back-off")
    stage.converge(2)
    condition = stage.pool_condition("bad-cpu", "Ready")
    assert condition["reason"] == "ImagePullFailed"
    assert condition["message"].startswith("spec.template.spec.containers[0].image: ")
    job = stage.condition("RolloutsReady")
    assert job["message"].startswith("spec.rollouts[0].template.spec.containers[0].image: ")
