"""The status of a pool, for people and for autoscalers."""

import pytest

from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator


def test_the_selector_is_there_from_the_first_write_on() -> None:
    simulator = JobSimulator()
    simulator.reconcile()
    simulator.reconcile()
    assert simulator.pools["bad-cpu"]["status"]["selector"] == (
        "rollcall.dev/job=bad,rollcall.dev/role=rollout,rollcall.dev/pool=bad-cpu"
    )


def test_a_pool_has_two_status_writes_until_it_is_ready() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.writes["pool status"] == 2
    status = simulator.pools["bad-cpu"]["status"]
    numbers = [status[key] for key in ("replicas", "readyReplicas", "inSync", "epoch")]
    assert numbers == [2, 2, 2, 1]
    assert simulator.pool_condition("bad-cpu", "Ready")["status"] == "True"


def test_a_new_epoch_is_written_into_the_pool_together_with_the_job() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    for pod in simulator.pods_of("bad-cpu"):
        simulator.change(pod, ready=True)
    plan = simulator.reconcile(40)
    assert plan.epoch_change
    assert plan.pool_statuses["bad-cpu"]["epoch"] == (plan.job_status or {})["epoch"] == 1


def test_weight_versions_are_throttled_like_progress() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60)
    before = simulator.writes["pool status"]
    for step in range(30):
        simulator.report(step=step)
        simulator.reconcile(1)
    assert simulator.writes["pool status"] - before <= 3
    assert simulator.pools["bad-cpu"]["status"]["weightVersion"]["min"] >= 19


@pytest.mark.parametrize("seconds", [1, 3, 6, 9])
def test_numbers_are_written_with_those_of_the_job(seconds: float) -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60)
    simulator.report(step=1)
    plan = simulator.reconcile()
    assert plan.job_status
    assert plan.pool_statuses
    simulator.pools["bad-cpu"]["status"]["lastUpdate"] = to_micro_time(simulator.now - seconds)
    written = []
    for step in range(2, 62):
        simulator.report(step=step)
        plan = simulator.reconcile(1)
        written.append((plan.job_status is not None, bool(plan.pool_statuses)))
    assert set(written[20:]) == {(True, True), (False, False)}
    assert written[20:].count((True, True)) == 4


def test_numbers_of_a_pool_whose_job_says_the_same_are_written_a_little_later() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60)
    pod, *_ = simulator.pods_of("bad-cpu")
    simulator.report(states={pod.uid: MemberState.STALE})
    before = simulator.pools["bad-cpu"]["status"].get("stale", 0)
    simulator.converge(15)
    assert simulator.pools["bad-cpu"]["status"]["stale"] == before + 1


def test_stale_and_leaving_rollouts_are_counted() -> None:
    simulator = JobSimulator({"spec.rollouts[0].replicas": 3})
    simulator.to_running()
    first, second, _ = simulator.pods_of("bad-cpu")
    simulator.change(first, terminating=True)
    simulator.report(states={second.uid: MemberState.STALE})
    simulator.converge(20)
    status = simulator.pools["bad-cpu"]["status"]
    counts = [status[key] for key in ("replicas", "stale", "draining", "inSync")]
    assert counts == [2, 1, 1, 1]


def test_the_surplus_of_a_scale_down_is_not_counted_as_ready() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.scale("bad-cpu", 1)
    simulator.converge(2)
    condition = simulator.pool_condition("bad-cpu", "Ready")
    assert condition["message"] == "1 of 1 rollouts are ready"


def test_a_pod_that_has_failed_is_none_of_its_replicas() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-cpu")[0], phase="Failed", running=False)
    simulator.converge(20)
    assert simulator.pools["bad-cpu"]["status"]["replicas"] == 1


def test_without_a_report_the_versions_stay() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(step=7)
    simulator.converge(20)
    simulator.snapshot = None
    simulator.converge(60)
    assert simulator.pools["bad-cpu"]["status"]["weightVersion"] == {"min": 7, "max": 7}


def test_a_problem_is_reported_with_the_fields_path_in_the_pool() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    pod = simulator.pods_of("bad-cpu")[0]
    simulator.change(pod, waiting_reason="ImagePullBackOff", waiting_message="Back-off")
    simulator.converge(2)
    condition = simulator.pool_condition("bad-cpu", "Ready")
    assert condition["reason"] == "ImagePullFailed"
    assert condition["message"].startswith("spec.template.spec.containers[0].image: ")
    job = simulator.condition("RolloutsReady")
    assert job["message"].startswith("spec.rollouts[0].template.spec.containers[0].image: ")
