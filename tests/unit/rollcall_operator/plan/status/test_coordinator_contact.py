"""A coordinator that falls silent becomes a condition, and what it said before is marked as old."""

from dataclasses import replace

import pytest

from rollcall_operator.api.status import RLJobStatus
from rollcall_operator.plan.model import LinkFacts, LinkFailure, ReconcileMemory
from rollcall_operator.plan.status.coordinator_contact import silent_before
from rollcall_operator.plan.timestamps import to_time
from tests.unit.rollcall_operator.plan.simulator import START, JobSimulator


def running() -> JobSimulator:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.converge(1000)
    return simulator


def starting() -> JobSimulator:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.change(simulator.trainer, ready=False)
    return simulator


def silent(
    simulator: JobSimulator, failure: LinkFailure = LinkFailure.UNREACHABLE, detail: str = "refused"
) -> float:
    """The coordinator's last byte arrives now."""
    simulator.link = LinkFacts(False, simulator.now, failure, detail)
    return simulator.now


@pytest.mark.parametrize(
    ("failure", "reason", "cure"),
    [
        (LinkFailure.UNREACHABLE, "CoordinatorUnreachable", "can reach port 7070 of the pod"),
        (LinkFailure.SILENT, "CoordinatorSilent", "delete the pod to restart training"),
        (LinkFailure.REFUSED, "CoordinatorRefuses", "does not accept the operator's token"),
        (LinkFailure.INCOMPATIBLE, "CoordinatorIncompatible", "worker images of the operator's"),
    ],
)
def test_a_silent_coordinator_is_a_condition_with_its_cause_and_cure(
    failure: LinkFailure, reason: str, cure: str
) -> None:
    simulator = running()
    since = silent(simulator, failure, "the answer")
    simulator.converge(6)
    condition = simulator.condition("CoordinatorConnected")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert f"has not reported to the operator since {to_time(since)} (the answer)" in str(condition)
    assert cure in condition["message"]
    events = [event for plan in simulator.plans for event in plan.events]
    assert [str(event.reason) for event in events].count(reason) == 1


def test_what_it_reported_is_unknown_now_and_the_status_says_since_when() -> None:
    simulator = running()
    since = silent(simulator)
    simulator.converge(6)
    for kind in ("Running", "WeightsInSync"):
        assert simulator.condition(kind)["status"] == "Unknown", kind
    assert simulator.status["phase"] == "Unknown"
    assert simulator.status["staleSince"] == to_time(since)
    assert simulator.pools["bad-cpu"]["status"]["staleSince"] == to_time(since)


def test_a_connection_that_is_opened_again_soon_changes_nothing() -> None:
    simulator = running()
    silent(simulator)
    plan = simulator.reconcile(4)
    assert simulator.condition("CoordinatorConnected")["status"] == "True"
    assert plan.requeue_after == pytest.approx(1.0), "it is looked at when the time has passed"


def test_all_is_as_before_when_it_reports_again() -> None:
    simulator = running()
    silent(simulator)
    simulator.converge(60)
    simulator.link = None
    simulator.converge(2)
    assert simulator.status["phase"] == "Running"
    assert "staleSince" not in simulator.status
    assert "staleSince" not in simulator.pools["bad-cpu"]["status"]
    assert simulator.condition("CoordinatorConnected")["reason"] == "Connected"


def test_a_coordinator_that_starts_is_no_failure() -> None:
    simulator = starting()
    simulator.link = LinkFacts(False, START, LinkFailure.UNREACHABLE, "connection refused")
    simulator.converge(60)
    condition = simulator.condition("CoordinatorConnected")
    assert (condition["status"], condition["reason"]) == ("False", "Starting")
    assert condition["message"].endswith("has not reported to the operator yet: connection refused")


@pytest.mark.parametrize(
    ("failure", "bound", "reason"),
    [
        (LinkFailure.UNREACHABLE, 30, "CoordinatorUnreachable"),
        (LinkFailure.REFUSED, 5, "CoordinatorRefuses"),
        (LinkFailure.EXCESSIVE, 5, "CoordinatorSendsTooMuch"),
    ],
)
def test_a_coordinator_that_has_never_reported_has_longer_unless_it_answers(
    failure: LinkFailure, bound: int, reason: str
) -> None:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.link = LinkFacts(False, START, failure, "no")
    simulator.change(simulator.trainer, ready_since=START + 60)
    reasons = []
    for simulator.now in (START + 61, START + 59 + bound, START + 61 + bound):
        simulator.converge()
        reasons.append(simulator.condition("CoordinatorConnected")["reason"])
    assert reasons == ["Starting", "Starting", reason]


def test_a_hanging_coordinator_stays_a_failure_when_its_probes_fail_too() -> None:
    simulator = running()
    silent(simulator, LinkFailure.SILENT)
    simulator.converge(11)
    simulator.change(simulator.trainer, ready=False)
    simulator.converge(10)
    assert simulator.condition("CoordinatorConnected")["reason"] == "CoordinatorSilent"


def test_a_coordinator_hangs_also_if_its_probes_fail_before_its_connection_counts_as_silent() -> (
    None
):
    simulator = running()
    silent(simulator, LinkFailure.SILENT)
    simulator.change(simulator.trainer, ready=False)
    simulator.converge(11)
    assert simulator.condition("CoordinatorConnected")["reason"] == "CoordinatorSilent"


def test_a_coordinator_that_was_cut_off_is_a_failure_also_in_a_pod_that_was_never_ready() -> None:
    simulator = starting()
    silent(simulator, LinkFailure.EXCESSIVE, "it sent too much")
    simulator.converge(6)
    assert simulator.condition("CoordinatorConnected")["reason"] == "CoordinatorSendsTooMuch"


def test_a_trainer_that_starts_again_in_its_pod_is_no_failure() -> None:
    simulator = running()
    silent(simulator, LinkFailure.UNREACHABLE)
    simulator.change(simulator.trainer, ready=False)
    simulator.converge(60)
    assert "staleSince" not in simulator.status
    condition = simulator.condition("CoordinatorConnected")
    assert (condition["status"], condition["reason"]) == ("False", "Starting")
    assert "since it started again: refused" in condition["message"]


def test_an_operator_that_restarts_meanwhile_says_so_too() -> None:
    simulator = running()
    simulator.memory, simulator.snapshot = ReconcileMemory(), None
    silent(simulator)
    simulator.converge(6)
    assert simulator.condition("CoordinatorConnected")["reason"] == "CoordinatorUnreachable"
    assert simulator.condition("Running")["status"] == "Unknown"


def test_an_operator_that_restarts_goes_on_counting_a_silence_and_writes_nothing() -> None:
    simulator = running()
    since = silent(simulator, LinkFailure.SILENT, "no heartbeat")
    simulator.converge(60)
    stored = simulator.status
    simulator.memory, simulator.snapshot = ReconcileMemory(), None
    ready = replace(simulator.trainer, ready_since=START)
    before = silent_before(RLJobStatus.read(stored), ready)
    assert before is not None
    assert before.since == pytest.approx(since, abs=1.0)
    assert before.failure is LinkFailure.SILENT
    for failure, detail in ((None, ""), (LinkFailure.SILENT, "no heartbeat")):
        simulator.link = LinkFacts(False, before.since, failure, detail)
        for _ in range(3):
            plan = simulator.reconcile(2)
            assert plan.job_status is None, failure
            assert plan.pool_statuses == {}, failure
    assert simulator.status["staleSince"] == stored["staleSince"] == to_time(since)


def test_a_trainer_that_has_restarted_since_is_not_silent_from_before() -> None:
    simulator = running()
    silent(simulator)
    simulator.converge(60)
    pod = replace(simulator.trainer, ready_since=START)
    status = RLJobStatus.read(simulator.status)
    assert silent_before(status, pod) is not None
    assert silent_before(status, replace(pod, ready_since=simulator.now)) is None
    assert silent_before(status, replace(pod, ready_since=None)) is None


def test_after_a_report_a_silence_begins_again() -> None:
    simulator = running()
    silent(simulator)
    simulator.converge(60)
    simulator.link = None
    simulator.converge(2)
    since = silent(simulator)
    simulator.converge(6)
    assert simulator.status["staleSince"] == to_time(since)


def test_no_rollout_is_replaced_for_what_an_old_report_says() -> None:
    simulator = running()
    silent(simulator)
    for _ in range(5):
        assert not simulator.reconcile(600).pod_deletions


def test_one_that_sends_too_much_is_named_with_what_to_do() -> None:
    simulator = running()
    silent(simulator, LinkFailure.EXCESSIVE)
    simulator.converge(6)
    condition = simulator.condition("CoordinatorConnected")
    assert (condition["status"], condition["reason"]) == ("False", "CoordinatorSendsTooMuch")
    assert "use worker images of the operator's release" in condition["message"]
