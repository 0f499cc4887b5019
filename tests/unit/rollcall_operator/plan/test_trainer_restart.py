"""A trainer's new template waits for a restart, which a user asks for; a gang restarts whole."""

from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_operator.plan.model import JobPlan
from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.unit.rollcall_operator.plan.simulator import JOB, JobSimulator

SET = f"StatefulSet/{JOB}-trainer"
CHECKPOINT = {"everySteps": 5, "volume": {"persistentVolumeClaim": {"claimName": "saved"}}}
IMAGE = "spec.trainer.template.spec.containers[0].image"


def running(changes: dict[str, Any] | None = None) -> JobSimulator:
    simulator = JobSimulator(changes)
    simulator.to_running()
    simulator.converge(1000)
    return simulator


def annotate(simulator: JobSimulator, value: str | None) -> None:
    assert simulator.job is not None
    annotations = simulator.job["metadata"].setdefault("annotations", {})
    annotations.pop(labels.RESTART_TRAINER, None)
    if value is not None:
        annotations[labels.RESTART_TRAINER] = value


def deleted(plan: JobPlan) -> set[str]:
    return {deletion.pod for deletion in plan.pod_deletions}


def restart_event(simulator: JobSimulator) -> str:
    annotate(simulator, "now")
    simulator.converge(2)
    events = (event for plan in simulator.plans for event in plan.events)
    (event,) = (event for event in events if event.reason == "TrainerRestarted")
    return event.message


def test_a_changed_template_waits_and_the_condition_names_the_command() -> None:
    simulator = running()
    simulator.edit({IMAGE: "rollcall/worker:2"})
    simulator.converge(2)
    simulator.converge(2)
    assert not any(plan.pod_deletions for plan in simulator.plans)
    condition = simulator.condition("TrainerUpToDate")
    assert (condition["status"], condition["reason"]) == ("False", "RestartNeeded")
    command = (
        'kubectl annotate rljob bad -n team rollcall.dev/restart-trainer="$(date)" --overwrite'
    )
    assert command in condition["message"]
    assert simulator.condition("Running")["status"] == "True", "training goes on"


def test_without_a_checkpoint_the_condition_says_what_a_restart_costs() -> None:
    simulator = running()
    simulator.edit({IMAGE: "rollcall/worker:2"})
    simulator.converge(2)
    simulator.converge(2)
    message = simulator.condition("TrainerUpToDate")["message"]
    assert message.endswith("starts again at step 0, as spec.trainer.checkpoint is not set")
    assert "starts again" not in restart_event(running({"spec.trainer.checkpoint": CHECKPOINT}))
    assert "starts again at step 0" in restart_event(running())


def test_the_annotation_restarts_the_gang_once() -> None:
    simulator = running({"spec.trainer.replicas": 2})
    simulator.edit({IMAGE: "rollcall/worker:2"})
    annotate(simulator, "now")
    simulator.converge(2)
    plans = [plan for plan in simulator.plans if plan.pod_deletions]
    assert [deleted(plan) for plan in plans] == [{"bad-trainer-0", "bad-trainer-1"}]
    assert "TrainerRestarted" in {event.reason for event in plans[0].events}
    simulator.schedule()
    simulator.run()
    simulator.converge(60)
    assert simulator.condition("TrainerUpToDate")["status"] == "True"
    assert len([plan for plan in simulator.plans if plan.pod_deletions]) == 1


def test_pods_are_deleted_only_once_their_successors_get_the_new_template() -> None:
    """The StatefulSet's controller would make them from the one that it knows."""
    simulator = running()
    annotate(simulator, "now")
    first = simulator.reconcile(2)
    assert [body["kind"] for body in first.applies] == ["StatefulSet"]
    assert not first.pod_deletions, "the template is only about to be written"
    simulator.children[SET]["status"]["observedGeneration"] -= 1
    assert not simulator.reconcile().pod_deletions, "its controller has not seen it yet"
    simulator.children[SET]["status"]["observedGeneration"] += 1
    assert deleted(simulator.reconcile()) == {"bad-trainer-0"}


def test_a_pod_that_still_ends_runs_with_the_former_template() -> None:
    simulator = running()
    simulator.edit({IMAGE: "rollcall/worker:2"})
    simulator.converge(2)
    simulator.change(simulator.trainer, terminating=True)
    simulator.converge(2)
    assert simulator.condition("TrainerUpToDate")["reason"] == "RestartNeeded"


def test_removing_the_annotation_restarts_nothing() -> None:
    simulator = running()
    annotate(simulator, "now")
    simulator.converge(2)
    simulator.schedule()
    simulator.run()
    simulator.converge(60)
    annotate(simulator, None)
    before = len(simulator.plans)
    simulator.converge(2)
    later = simulator.plans[before:]
    assert not any(plan.pod_deletions or plan.applies for plan in later)
    assert simulator.condition("TrainerUpToDate")["status"] == "True"


def test_kubectl_rollout_restart_does_the_same() -> None:
    simulator = running()
    annotate(simulator, "before")
    simulator.converge(2)
    simulator.schedule()
    simulator.run()
    annotate(simulator, None)
    simulator.converge(2)
    metadata = simulator.children[SET]["spec"]["template"]["metadata"]
    metadata["annotations"][labels.ROLLOUT_RESTART] = "2027-01-15T08:00:00Z"
    assert deleted(simulator.reconcile(2)) == {"bad-trainer-0"}
    simulator.schedule()
    simulator.run()
    assert not simulator.reconcile(2).pod_deletions


def test_a_suspended_or_finished_job_restarts_nothing() -> None:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    annotate(simulator, "now")
    simulator.reconcile(2)
    assert not simulator.reconcile().pod_deletions


# --- the kubelet's back-off ----------------------------------------------------------------------

SCRATCH = {"spec.trainer.template.spec.volumes": [{"name": "models", "emptyDir": {}}]}
MEMORY = {"spec.trainer.template.spec.volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
KEPT = {"spec.trainer.checkpoint": CHECKPOINT}
IN_POD = {"spec.trainer.checkpoint": {"everySteps": 5, "volume": {"emptyDir": {}}}}


def back_off(simulator: JobSimulator, ends: int = 2, **facts: Any) -> set[str]:
    """The trainer has ended for the second time, so that the kubelet waits; pods deleted then."""
    ended = {"exit_code": 137, "ran_for": 14.0, "waiting_reason": "CrashLoopBackOff"}
    down = {"running": False, "ready": False, "up": False, "restarts": ends - 1}
    simulator.change(simulator.trainer, **{**ended, **down, **facts})
    before = len(simulator.plans)
    simulator.converge(1)
    return set().union(*(deleted(plan) for plan in simulator.plans[before:]))


@pytest.mark.parametrize(
    ("changes", "facts", "replaced"),
    [
        pytest.param(KEPT, {}, True, id="killed"),
        pytest.param(KEPT, {"exit_code": 143}, True, id="terminated"),
        pytest.param(None, {}, True, id="without checkpoints"),
        pytest.param(MEMORY, {}, True, id="shared memory"),
        pytest.param(IN_POD, {}, False, id="its checkpoints would be gone"),
        pytest.param(SCRATCH, {}, False, id="its files would be gone"),
        pytest.param(KEPT, {"oom_killed": True}, False, id="out of memory"),
        pytest.param(KEPT, {"exit_code": 1}, False, id="an error of its own"),
        pytest.param(KEPT, {"ran_for": 1.0}, False, id="at once"),
        pytest.param(KEPT, {"init": True}, False, id="an init container"),
        pytest.param(KEPT, {"waiting_reason": ""}, False, id="before the back-off"),
    ],
)
def test_a_trainer_that_was_killed_gets_a_new_pod_in_place_of_a_back_off(
    changes: dict[str, Any] | None, facts: dict[str, Any], replaced: bool
) -> None:
    simulator = running(changes)
    assert back_off(simulator, **facts) == ({"bad-trainer-0"} if replaced else set())
    events = [event for plan in simulator.plans for event in plan.events]
    said = [event.message for event in events if event.reason == "TrainerRestarted"]
    assert [("exit code 1" in text) for text in said] == [True] * replaced


def test_one_that_got_further_than_before_has_no_back_off_either() -> None:
    simulator = running(KEPT)
    simulator.report(step=8)
    simulator.converge(20)
    assert back_off(simulator, 1, exit_code=1) == {"bad-trainer-0"}
    assert simulator.status["trainer"]["restarts"] == 1, "the failure policy counts it"
    simulator.schedule()
    simulator.run()
    simulator.converge(20)
    assert not back_off(simulator, 1, exit_code=1), "again at step 8: it fails by itself"
    assert simulator.status["trainer"]["restarts"] == 2


def test_a_suspended_or_finished_job_is_left_as_it_is() -> None:
    simulator = running({**KEPT, "spec.cleanPodPolicy": "None"})
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(5)
    assert not back_off(simulator)
