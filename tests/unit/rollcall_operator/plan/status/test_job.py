"""Job status: what is written, and how often."""

from dataclasses import replace

import pytest

from rollcall_operator.api.status import LONGEST_MESSAGE
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator, writes_anything


@pytest.fixture
def running() -> JobSimulator:
    """A job that has been running for a while."""
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(60)
    return simulator


def test_progress_is_written_at_most_every_ten_seconds(running: JobSimulator) -> None:
    written = []
    for second in range(60):
        running.report(step=second, reward=second / 100)
        if running.reconcile(1.0).job_status:
            written.append(second)
    assert len(written) <= 6
    assert running.status["progress"]["step"] >= 49


def test_progress_that_waits_is_not_forgotten(running: JobSimulator) -> None:
    running.report(step=1)
    running.reconcile(10)
    running.report(step=2)
    plan = running.reconcile(1)
    assert plan.job_status is None
    assert plan.requeue_after == pytest.approx(9, abs=0.1)
    running.reconcile(9)
    assert running.status["progress"]["step"] == 2


def test_no_step_no_write(running: JobSimulator) -> None:
    running.report(step=1)
    running.converge(20)
    assert not any(writes_anything(running.reconcile(30)) for _ in range(20))


def test_an_epoch_does_not_wait_for_the_ten_seconds(running: JobSimulator) -> None:
    running.report(step=1)
    running.reconcile(10)
    running.change(running.pods_of("bad-cpu")[0], terminating=True)
    assert running.reconcile(0.1).job_status


def test_conditions_that_flap_are_written_once_a_second_at_most(running: JobSimulator) -> None:
    uid = running.pods_of("bad-cpu")[0].uid
    before = running.writes["job status"]
    for count in range(100):
        state = MemberState.STALE if count % 2 else MemberState.IN_SYNC
        running.report(states={uid: state})
        running.reconcile(0.1)
    assert running.writes["job status"] - before <= 11


def test_transition_times_change_only_when_the_status_flips(running: JobSimulator) -> None:
    before = running.condition("WeightsInSync")["lastTransitionTime"]
    running.edit({"spec.failurePolicy.maxRestarts": 9})
    running.converge(60)
    condition = running.condition("WeightsInSync")
    assert condition["observedGeneration"] == 2
    assert condition["lastTransitionTime"] == before
    running.report(states={running.pods_of("bad-cpu")[0].uid: MemberState.STALE})
    running.converge(60)
    assert running.condition("WeightsInSync")["lastTransitionTime"] != before


def test_an_operator_without_news_says_nothing_new(running: JobSimulator) -> None:
    """It has just started, or its stream broke: what was true a moment ago stands."""
    running.report(step=5, reward=0.5)
    running.converge(20)
    before = dict(running.status)
    running.snapshot = None
    assert not writes_anything(running.reconcile(60))
    assert running.status == before


def test_the_last_reward_stays_while_no_sample_is_new(running: JobSimulator) -> None:
    running.report(step=5, reward=0.5)
    running.converge(20)
    running.report(step=6)
    running.converge(20)
    progress = running.status["progress"]
    assert (progress["step"], progress["rolloutReward"]) == (6, "0.500")


def test_a_suspended_job_should_have_no_trainer(running: JobSimulator) -> None:
    running.edit({"spec.suspend": True})
    running.converge(1)
    assert running.status["trainer"]["replicas"] == 0


def test_a_coordinator_that_is_gone_is_reported(running: JobSimulator) -> None:
    running.snapshot = None
    del running.pods[running.trainer.uid]
    running.converge(2)
    assert running.condition("WeightsInSync")["reason"] == "NoCoordinator"
    assert running.status["phase"] == "Restarting"
    assert running.status["syncGroups"][0]["phase"] == "Rebuilding"


def test_news_from_another_pod_than_todays_coordinator_is_ignored(running: JobSimulator) -> None:
    running.report(step=99)
    del running.pods[running.trainer.uid]
    running.schedule()
    running.run(running.trainer)
    running.converge(20)
    assert running.status["progress"]["step"] != 99


def test_the_sync_group_has_phase_epoch_and_causes(running: JobSimulator) -> None:
    (group,) = running.status["syncGroups"]
    assert group["name"] == "default"
    assert (group["phase"], group["members"], group["epoch"]) == ("Stable", 3, 1)
    assert group["lastRebuild"]["cause"] == "NewRoster"
    assert group["lastRebuild"]["seconds"] == "0.250"
    (record,) = group["history"]
    assert (record["epoch"], record["cause"], record["members"]) == (1, "JobStarted", 3)


def test_status_has_every_sync_group() -> None:
    groups = [{"name": "ascend", "engine": "gloo"}]
    simulator = JobSimulator({"spec.weightSync.groups": groups})
    simulator.to_running()
    default, ascend = simulator.status["syncGroups"]
    assert (ascend["name"], ascend["engine"], ascend["phase"]) == ("ascend", "gloo", "Stable")
    assert ascend["lastRebuild"] == default["lastRebuild"]
    assert simulator.snapshot is not None
    first, second = simulator.snapshot.groups
    simulator.snapshot = replace(simulator.snapshot, groups=(first, replace(second, session=None)))
    simulator.converge(2)
    default, ascend = simulator.status["syncGroups"]
    assert (default["phase"], ascend["phase"]) == ("Stable", "Rebuilding")
    message = simulator.condition("WeightsInSync")["message"]
    assert message == ("sync group ascend: a communication session for epoch 1 is being formed")


def test_a_group_is_stable_while_its_session_stands_for_the_roster_whatever_its_epoch(
    running: JobSimulator,
) -> None:
    assert running.snapshot is not None
    (group,) = running.snapshot.groups
    assert group.session is not None
    kept = replace(group, session=replace(group.session, session=SessionId(0, 1, 1)))
    running.snapshot = replace(running.snapshot, groups=(kept,))
    running.converge(2)
    assert running.status["syncGroups"][0]["phase"] == "Stable"
    running.snapshot = replace(running.snapshot, groups=(replace(kept, formed=False),))
    running.converge(2)
    assert running.status["syncGroups"][0]["phase"] == "Rebuilding"


def test_a_roster_that_has_not_been_taken_yet_is_rebuilding(running: JobSimulator) -> None:
    running.change(running.pods_of("bad-cpu")[0], terminating=True)
    running.reconcile(2)
    assert running.status["syncGroups"][0]["phase"] == "Rebuilding"
    assert running.condition("WeightsInSync")["reason"] == "Rebuilding"
    running.report()
    running.converge(2)
    assert running.status["syncGroups"][0]["phase"] == "Stable"


def test_too_few_rollouts_stop_the_phase_running() -> None:
    simulator = JobSimulator({"spec.membership.minRollouts": 2})
    simulator.to_running()
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    simulator.reconcile(2)
    simulator.report()
    simulator.converge(2)
    condition = simulator.condition("Running")
    assert (simulator.status["phase"], condition["reason"]) == ("Starting", "TooFewRollouts")
    assert "weights: 1, required by spec.membership.minRollouts: 2" in condition["message"]


def test_with_sync_switched_off_the_job_runs_and_says_so() -> None:
    simulator = JobSimulator({"spec.weightSync.enabled": False})
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.converge(0.5)
    simulator.report(states=dict.fromkeys(simulator.pods, MemberState.STALE))
    simulator.converge(0.5)
    simulator.converge(2)
    assert simulator.status["phase"] == "Running"
    assert all(pod.gate for pod in simulator.pods_of("bad-cpu"))
    assert simulator.condition("WeightsInSync")["reason"] == "SyncDisabled"
    lost = simulator.pods_of("bad-cpu")[0].uid
    simulator.report(states={lost: MemberState.SUSPECT})
    simulator.converge(2)
    assert [pod.uid for pod in simulator.pods_of("bad-cpu") if not pod.gate] == [lost]


def test_why_training_waits_and_what_is_wrong_is_shown(running: JobSimulator) -> None:
    running.report(step=3)
    assert running.snapshot is not None
    paused = running.snapshot.progress.__class__(
        step=3,
        max_steps=200,
        weight_version=3,
        rollout_reward=None,
        paused="0 of 1 rollouts",
        warning="step 2 was not saved",
    )
    running.snapshot = running.snapshot.__class__(
        **{
            name: getattr(running.snapshot, name)
            for name in running.snapshot.__dataclass_fields__
            if name != "progress"
        },
        progress=paused,
    )
    running.converge(20)
    assert running.status["progress"]["paused"] == "0 of 1 rollouts"
    assert running.status["progress"]["warning"] == "step 2 was not saved"
    running.report(step=4)
    running.converge(20)
    assert not {"paused", "warning"} & running.status["progress"].keys()


def test_a_coordinators_long_texts_are_cut_and_printable(running: JobSimulator) -> None:
    running.report(step=1)
    assert running.snapshot is not None
    (group,) = running.snapshot.groups
    assert group.session is not None
    session = replace(group.session, session=SessionId(9, 9, 9), detail="d" * 10**5, time=1e9)
    text = "\x1b[2J" + "w" * 10**5
    running.snapshot = replace(
        running.snapshot,
        groups=(replace(group, session=session, sessions=(session,)),),
        progress=replace(running.snapshot.progress, paused=text, warning=text),
    )
    running.reconcile(20)
    progress = running.status["progress"]
    for field in ("paused", "warning"):
        assert progress[field] == " [2J" + "w" * (LONGEST_MESSAGE - 4)
    sessions = running.status["syncGroups"][0]["sessions"]
    assert sessions[-1]["message"] == "d" * LONGEST_MESSAGE
