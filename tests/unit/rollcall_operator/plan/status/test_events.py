"""Events: each change that matters to a person is recorded once."""

from typing import Any

import pytest

from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.unit.rollcall_operator.plan.simulator import JobSimulator


def reasons(simulator: JobSimulator) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for plan in simulator.plans for event in plan.events]


def test_a_good_start_is_three_events_at_most() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert reasons(simulator) == [("Normal", "EpochOpened"), ("Normal", "Running")]


def test_the_event_of_an_epoch_has_its_cause() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    victim = simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    (event,) = simulator.reconcile(1).events
    assert event.reason == "EpochOpened"
    lost = f"lost: {victim.name} (terminating)"
    assert event.message == (f"epoch 2 opened for the trainer and 1 rollout (MemberLost): {lost}")
    assert event.regarding["kind"] == "RLJob"


def test_a_problem_is_reported_once() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    pod = simulator.pods_of("bad-cpu")[0]
    for count in range(5):
        simulator.change(pod, waiting_reason="ErrImagePull" if count % 2 else "ImagePullBackOff")
        simulator.reconcile(30)
    assert reasons(simulator) == [("Warning", "ImagePullFailed")]


def test_the_same_problem_of_other_pods_is_reported_too() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    for pod in (simulator.trainer, simulator.pods_of("bad-cpu")[0]):
        simulator.change(pod, waiting_reason="ImagePullBackOff", waiting_message="Back-off")
        simulator.converge(2)
    assert reasons(simulator) == 2 * [("Warning", "ImagePullFailed")]


def test_a_spec_that_cannot_be_read_is_reported() -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.edit({"spec.trainer.replicas": "two"})
    simulator.converge(1)
    assert reasons(simulator) == [("Warning", "InvalidSpec")]


def test_the_end_of_the_job_is_reported() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(finished=TrainingResult(step=9, error="diverged"))
    simulator.converge(1)
    simulator.converge(60)
    assert reasons(simulator)[-1] == ("Warning", "TrainingFailed")
    assert simulator.plans[-1].events == ()


def test_a_pause_is_reported_with_its_cause_and_so_is_its_end() -> None:
    simulator = JobSimulator({"spec.membership.minRollouts": 2})
    simulator.to_running()
    victim = simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    simulator.reconcile(2)
    simulator.report()
    simulator.converge(2)
    (event,) = [e for plan in simulator.plans for e in plan.events if e.reason == "TooFewRollouts"]
    assert event.type == "Warning"
    assert "weights: 1, required by spec.membership.minRollouts: 2" in event.message
    simulator.pods.pop(victim.uid)
    simulator.schedule()
    simulator.run()
    simulator.converge(2)
    simulator.report()
    simulator.converge(2)
    assert reasons(simulator)[-1] == ("Normal", "Running")


def test_a_start_is_no_pause() -> None:
    simulator = JobSimulator({"spec.membership.minRollouts": 2})
    simulator.to_running()
    assert "TooFewRollouts" not in {reason for _, reason in reasons(simulator)}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "training then starts again at step 0, as spec.trainer.checkpoint is not set"),
        (
            {"spec.trainer.checkpoint": {"volume": {"emptyDir": {}}}},
            "training then goes on from the last checkpoint",
        ),
    ],
)
def test_a_suspended_job_that_is_resumed_says_from_where(spec: dict[str, Any], says: str) -> None:
    simulator = JobSimulator(spec)
    simulator.to_running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    simulator.schedule()
    simulator.edit({"spec.suspend": False})
    simulator.converge(1)
    event = [event for plan in simulator.plans for event in plan.events][-1]
    assert event.reason == "Resumed"
    assert event.message == f"spec.suspend is false: the job's pods start; {says}"


def test_a_reconcile_that_changes_nothing_is_no_event() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60)
    before = len(reasons(simulator))
    for _ in range(10):
        simulator.reconcile(60)
    assert len(reasons(simulator)) == before
