"""The condition NetworkPoliciesEnforced: a warning where they hold nothing off, and no more."""

import pytest

from rollcall_operator.plan.status.enforced_policies import can_be_tried
from tests.apiserver.bad_manifests.manifests import EXTERNAL
from tests.apiserver.bad_manifests.refused_at_apply import NO_ALGORITHM
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

KIND = "NetworkPoliciesEnforced"


def running() -> JobSimulator:
    simulator = JobSimulator()
    simulator.to_running()
    return simulator


def test_without_a_finding_there_is_no_condition() -> None:
    assert KIND not in {c["type"] for c in running().status["conditions"]}


@pytest.mark.parametrize(
    ("enforced", "status", "reason"),
    [(True, "True", "Enforced"), (False, "False", "NotEnforced")],
)
def test_a_finding_is_a_condition_and_leaves_the_job_running(
    enforced: bool, status: str, reason: str
) -> None:
    simulator = running()
    simulator.policies_enforced = enforced
    simulator.converge(1)
    found = simulator.condition(KIND)
    assert (found["status"], found["reason"]) == (status, reason)
    assert simulator.status["phase"] == "Running"
    simulator.policies_enforced = None  # another operator
    simulator.converge(1000)
    assert simulator.condition(KIND) == found


def test_a_network_that_enforces_nothing_is_a_warning_once_with_what_to_do() -> None:
    simulator = running()
    simulator.policies_enforced = False
    for _ in range(3):
        simulator.converge(100)
    events = [e for plan in simulator.plans for e in plan.events if e.reason == "NotEnforced"]
    assert [event.type for event in events] == ["Warning"]
    assert "install a network plugin that enforces NetworkPolicies" in events[0].message


def test_turned_off_it_is_unknown_where_it_was_there() -> None:
    simulator = running()
    simulator.policies_enforced = False
    simulator.converge(1)
    simulator.policies_enforced = None
    simulator.edit({"spec.networkPolicy.enabled": False})
    simulator.converge(1)
    found = simulator.condition(KIND)
    assert (found["status"], found["reason"]) == ("Unknown", "NetworkPoliciesDisabled")


def test_it_is_tried_where_a_policy_protects_a_port_that_listens() -> None:
    simulator = JobSimulator()
    assert not can_be_tried(simulator.observed())
    simulator.converge()
    assert can_be_tried(simulator.observed())
    simulator.edit({"spec.networkPolicy.enabled": False})
    simulator.converge()
    assert not can_be_tried(simulator.observed())
    # Their coordinators take no completions.
    for others in ({**NO_ALGORITHM, "spec.supervised": {}}, EXTERNAL):
        simulator = JobSimulator(others)
        simulator.converge()
        assert not can_be_tried(simulator.observed())
