"""Conditions of a job: what each counts, which pool or group it is about, and how it ends."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rollcall_operator.plan.model import LinkFacts, LinkFailure
from rollcall_protocol.wire.job_snapshot import (
    LostSessions,
    MemberState,
    SuspicionCause,
    TimeBound,
)
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool

RLJOBS = Path(__file__).parents[5] / "crds" / "rollcall.dev_rljobs.yaml"


def state(simulator: JobSimulator, kind: str) -> tuple[str, str]:
    condition = simulator.condition(kind)
    return condition["status"], condition["reason"]


def with_lent_pool(own: int, lent: int) -> JobSimulator:
    """A running job with so many rollouts of its own, and so many lent ones."""
    simulator = JobSimulator({"spec.rollouts[0].replicas": own})
    simulator.pools["lent"] = lent_pool({"spec.replicas": lent})
    simulator.to_running()
    return simulator


# --- the spec ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "named"), [(7, 7), (8, 8), (9, 8)])
def test_up_to_eight_faults_are_named_a_line_for_each(wrong: int, named: int) -> None:
    variables = [{"name": f"ROLLCALL_{n}", "value": "x"} for n in range(wrong)]
    simulator = JobSimulator({"spec.trainer.template.spec.containers[0].env": variables})
    simulator.converge()
    assert len(simulator.condition("Validated")["message"].splitlines()) == named


# --- pods ----------------------------------------------------------------------------------------


def test_one_pools_surplus_does_not_hide_what_another_lacks() -> None:
    simulator = with_lent_pool(own=2, lent=1)
    simulator.scale("bad-cpu", 1)
    simulator.scale("lent", 2)
    simulator.converge(2)
    assert state(simulator, "RolloutsReady") == ("False", "Starting")
    assert simulator.condition("RolloutsReady")["message"] == "2 of 3 rollouts are ready"


def test_a_problem_of_any_pool_is_named() -> None:
    simulator = with_lent_pool(own=1, lent=1)
    simulator.change(simulator.pods_of("lent")[0], running=False, exit_code=64, exit_message="no")
    simulator.converge(2)
    assert state(simulator, "RolloutsReady") == ("False", "BadConfig")
    assert simulator.condition("RolloutsReady")["message"].startswith("RolloutPool lent: spec.")


def test_pools_of_no_rollouts_generate_no_samples() -> None:
    simulator = JobSimulator({"spec.rollouts[0].replicas": 0})
    simulator.converge()
    assert state(simulator, "RolloutsReady") == ("False", "NoRollouts")


def test_the_trainer_is_ready_once_all_of_its_pods_are() -> None:
    simulator = JobSimulator({"spec.trainer.replicas": 2})
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-trainer")[1], ready=False)
    simulator.converge(2)
    assert state(simulator, "TrainerReady") == ("False", "Starting")
    assert simulator.condition("TrainerReady")["message"] == "1 of 2 trainer pods are ready"


# --- training and weights ------------------------------------------------------------------------


def test_a_trainer_that_ends_after_a_silence_restarts_and_does_not_start() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.link = LinkFacts(False, simulator.now, LinkFailure.SILENT)
    simulator.converge(6)
    assert state(simulator, "Running") == ("Unknown", "NoCoordinator")
    simulator.change(simulator.trainer, ready=False, running=False, exit_code=1, restarts=1)
    simulator.converge(1)
    assert state(simulator, "Running") == ("False", "Restarting")
    assert simulator.status["phase"] == "Restarting"


def test_weights_are_in_sync_once_every_group_has_its_session() -> None:
    simulator = JobSimulator({"spec.weightSync.groups": [{"name": "far"}]})
    simulator.to_running()
    assert state(simulator, "WeightsInSync") == ("True", "InSync")
    assert simulator.snapshot is not None
    default = simulator.snapshot.groups[:1]
    object.__setattr__(simulator.snapshot, "groups", default)
    simulator.converge(2)
    assert state(simulator, "WeightsInSync") == ("False", "Rebuilding")
    assert simulator.condition("WeightsInSync")["message"].startswith("sync group far: ")


def test_a_rollout_that_cannot_use_the_weights_is_named_with_what_it_says() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.snapshot is not None
    first, *others = simulator.snapshot.members
    said = "cannot use the weights: lm_head.weight has shape (43, 32), not (40, 32)"
    wrong = replace(
        first, state=MemberState.SUSPECT, reason=said, cause=SuspicionCause.ENGINE_ERROR
    )
    object.__setattr__(simulator.snapshot, "members", (wrong, *others))
    simulator.converge(2)
    message = simulator.condition("WeightsInSync")["message"]
    assert message.endswith(f": {first.pod} is Suspect (EngineError: {said})")


def test_four_of_the_rollouts_that_are_behind_are_named_and_the_others_counted() -> None:
    simulator = JobSimulator({"spec.rollouts[0].replicas": 7})
    simulator.to_running()
    behind = [pod.uid for pod in simulator.pods_of("bad-cpu")[:6]]
    simulator.report(states=dict.fromkeys(behind, MemberState.CATCHING_UP))
    simulator.converge(2)
    message = simulator.condition("WeightsInSync")["message"]
    assert message.startswith("1 of 7 rollouts serve current weights: ")
    assert message.count(" is CatchingUp") == 4
    assert message.endswith(" and 2 more")


@pytest.mark.parametrize(
    ("bound", "field"),
    [
        (TimeBound.JOIN, "spec.weightSync.joinTimeoutSeconds"),
        (TimeBound.SILENCE, "spec.membership.suspectAfterMilliseconds"),
    ],
)
def test_sessions_that_keep_ending_are_said_with_the_last_cause_and_the_field_to_raise(
    bound: TimeBound, field: str
) -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(lost_sessions=LostSessions(7, 95.4, bound, "join timed out"))
    simulator.converge(2)
    assert state(simulator, "WeightsInSync") == ("False", "SessionsKeepEnding")
    message = simulator.condition("WeightsInSync")["message"]
    assert "7 sessions in a row ended within 95 s" in message
    assert "The last: join timed out." in message
    assert f"or raise {field}, which is stretched to at most 6 times its value" in message
    simulator.converge(60)
    events = [event for plan in simulator.plans for event in plan.events]
    assert [e.type for e in events if e.reason == "SessionsKeepEnding"] == ["Warning"]
    simulator.report()
    simulator.converge(2)
    assert state(simulator, "WeightsInSync") == ("True", "InSync")


def test_no_field_is_named_where_the_engine_failed_at_once() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(lost_sessions=LostSessions(7, 95.4, None, "connection refused"))
    simulator.converge(2)
    assert simulator.condition("WeightsInSync")["message"].endswith("more CPU")


def test_every_bound_that_a_coordinator_names_is_a_field_of_the_spec() -> None:
    spec = yaml.safe_load(RLJOBS.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for bound in TimeBound:
        fields = spec["properties"]["spec"]
        for name in bound.value.split("."):
            fields = fields["properties"][name]
        assert fields["type"] == "integer"
