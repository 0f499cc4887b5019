"""What a plan must not do: act on other jobs' pods, on old reports, or past a bound."""

import json
from dataclasses import replace

import pytest

from rollcall_operator.api import labels
from rollcall_operator.api.status import HISTORY
from rollcall_operator.plan.job import make_plan
from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import (
    MemberState,
    SessionCause,
    SessionReport,
    TrainingResult,
)
from rollcall_protocol.wire.json_codec import decode
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

POOL = "bad-cpu"


def running(**changes: object) -> JobSimulator:
    simulator = JobSimulator(changes)
    simulator.to_running()
    return simulator


# --- the roster ----------------------------------------------------------------------------------


def members_of(simulator: JobSimulator) -> set[str]:
    simulator.converge(60)
    assert simulator.roster is not None
    return {member.pod_uid for member in simulator.roster.members}


def test_a_rollout_of_an_earlier_job_of_the_name_is_no_member() -> None:
    simulator = running()
    own = members_of(simulator)
    old = replace(simulator.pods_of(POOL)[0], uid="old", name="old", job_uid="earlier")
    simulator.pods["old"] = old
    assert members_of(simulator) == own


@pytest.mark.parametrize("facts", [{"ip": ""}, {"running": False}, {"phase": "Pending"}], ids=str)
def test_a_pod_that_cannot_be_reached_is_no_member(facts: dict[str, object]) -> None:
    simulator = running()
    first, second = simulator.pods_of(POOL)
    simulator.change(first, **facts)
    assert members_of(simulator) == {second.uid}


def test_a_roster_that_status_does_not_name_is_not_handed_out() -> None:
    """A lost race for the epoch leaves such a roster in memory."""
    simulator = running(**{"spec.membership": {"settleSeconds": 60}})
    simulator.scale(POOL, 4)
    simulator.converge()
    simulator.schedule()
    simulator.run(next(pod for pod in simulator.pods_of(POOL) if not pod.running))
    held = simulator.memory.roster
    assert held is not None
    simulator.memory = replace(simulator.memory, roster=replace(held, epoch=9))
    plan = simulator.reconcile()
    assert plan.roster is not None
    assert plan.roster.epoch == simulator.status["epoch"]


def test_a_trainer_that_is_being_deleted_is_no_coordinator() -> None:
    simulator = running()
    simulator.change(simulator.trainer, terminating=True)
    assert simulator.reconcile().roster is None


# --- gates, replacements, deletions --------------------------------------------------------------


def test_gates_of_a_suspended_job_are_left_alone() -> None:
    simulator = running()
    simulator.report(states=dict.fromkeys(simulator.pods, MemberState.STALE))
    simulator.edit({"spec.suspend": True})
    assert simulator.reconcile().gates == ()


def test_without_a_bound_no_suspect_is_replaced() -> None:
    simulator = running(**{"spec.membership": {"replaceAfterSeconds": 0}})
    simulator.converge(1000)
    suspect = simulator.pods_of(POOL)[0].uid
    simulator.report(states={suspect: MemberState.SUSPECT})
    simulator.converge()
    simulator.reconcile(100_000)
    assert not any(plan.pod_deletions for plan in simulator.plans)


def test_a_pool_without_an_entry_is_deleted_by_its_own_uid() -> None:
    simulator = running()
    assert simulator.job is not None
    simulator.job["spec"]["rollouts"][0]["name"] = "other"
    plan = make_plan(simulator.observed())
    (gone,) = plan.deletes
    assert (gone.kind, gone.name) == ("RolloutPool", POOL)
    assert gone.uid == simulator.pools[POOL]["metadata"]["uid"]


def test_the_trainers_stateful_set_selects_trainers_alone() -> None:
    simulator = running()
    selector = simulator.children["StatefulSet/bad-trainer"]["spec"]["selector"]["matchLabels"]
    assert selector == {labels.JOB: "bad", labels.ROLE: labels.TRAINER}


# --- status --------------------------------------------------------------------------------------


def test_status_has_step_version_and_the_generation_that_it_is_about() -> None:
    simulator = running()
    simulator.report(step=7)
    simulator.converge(60)
    progress = simulator.status["progress"]
    assert (progress["step"], progress["weightVersion"]) == (7, 7)
    simulator.edit({"spec.membership.minRollouts": 2})
    simulator.converge(60)
    assert simulator.status["observedGeneration"] == 2


def test_status_names_engine_and_coordinator_of_the_epoch() -> None:
    simulator = running(**{"spec.weightSync": {"engine": "mooncake"}})
    (group,) = simulator.status["syncGroups"]
    assert group["engine"] == "mooncake"
    assert group["coordinator"] == simulator.trainer.uid


def test_workers_read_staleness_and_whether_weights_are_sent() -> None:
    simulator = running(**{"spec.algorithm.maxStaleness": 3, "spec.weightSync": {"enabled": False}})
    for child in ("StatefulSet/bad-trainer", "Deployment/bad-cpu"):
        (worker,) = simulator.children[child]["spec"]["template"]["spec"]["containers"]
        text = next(x["value"] for x in worker["env"] if x["name"] == pod_contract.CONFIG)
        config = decode(JobConfig, json.loads(text))
        assert config.algorithm.max_staleness == 3
        assert config.weight_sync.enabled is False


def test_status_of_a_pool_has_the_range_of_its_versions_and_how_many_are_in_sync() -> None:
    simulator = running()
    _, second = simulator.pods_of(POOL)
    simulator.report(step=7, states={second.uid: MemberState.STALE})
    assert simulator.snapshot is not None
    members = tuple(
        replace(member, version=5) if member.pod_uid == second.uid else member
        for member in simulator.snapshot.members
    )
    simulator.snapshot = replace(simulator.snapshot, members=members)
    simulator.converge(60)
    status = simulator.pools[POOL]["status"]
    assert status["weightVersion"] == {"min": 5, "max": 7}
    assert (status["inSync"], status["stale"]) == (1, 1)


def test_the_history_of_epochs_is_bounded() -> None:
    simulator = running()
    for _ in range(HISTORY + 3):
        pod = simulator.pods_of(POOL)[0]
        del simulator.pods[pod.uid]
        simulator.schedule()
        simulator.run(*[new for new in simulator.pods_of(POOL) if not new.running])
        simulator.converge(60)
    history = simulator.status["syncGroups"][0]["history"]
    assert len(history) == HISTORY
    assert history[-1]["epoch"] == simulator.status["epoch"]


def test_a_rebuilt_session_is_an_event_once() -> None:
    simulator = running()
    assert simulator.snapshot is not None
    epoch = simulator.status["epoch"]
    rebuilt = SessionReport(
        session=SessionId(epoch, 1, 2), cause=SessionCause.MEMBER_LOST, members=2, seconds=0.1
    )
    (group,) = simulator.snapshot.groups
    simulator.snapshot = replace(
        simulator.snapshot, groups=(replace(group, session=rebuilt, sessions=(rebuilt,)),)
    )
    events = []
    for seconds in (5, 60, 60):
        events += [e for e in simulator.reconcile(seconds).events if e.reason == "SessionRebuilt"]
        progress = replace(simulator.snapshot.progress, step=seconds)
        simulator.snapshot = replace(simulator.snapshot, progress=progress)
    assert len(events) == 1


def test_a_failed_job_does_not_succeed_afterwards() -> None:
    simulator = running()
    simulator.report(finished=TrainingResult(step=7, error="loss is not a number"))
    simulator.converge(1)
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(60)
    assert "Succeeded" not in {c["type"] for c in simulator.status["conditions"]}


def test_a_clock_that_was_set_back_holds_up_no_status() -> None:
    simulator = running()
    simulator.now -= 100_000
    simulator.report(step=3)
    plan = simulator.reconcile()
    assert plan.job_status is None
    assert plan.requeue_after is not None
    assert plan.requeue_after <= 10
