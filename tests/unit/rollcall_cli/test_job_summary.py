"""What `rollcall status -o json` says of a job."""

from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_cli.job_summary import describe_rollout, read_summary, summarize
from rollcall_operator.kube.resources import PODS, RL_JOBS, Resource
from rollcall_protocol.pod_contract import READINESS_GATE
from tests.unit.rollcall_cli.example_record import job, record

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


def condition(kind: str, status: str, reason: str = "Because") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": "so", "extra": "left out"}


def rollout(name: str, *conditions: dict[str, str], **metadata: str) -> dict[str, Any]:
    labels = {"rollcall.dev/pool": "cpu"}
    return {
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {"nodeName": "node-1"},
        "status": {"conditions": list(conditions)},
    }


SERVES = rollout("a", condition("Ready", "True"), condition(READINESS_GATE, "True", "InSync"))
BEHIND = rollout("b", condition("Ready", "False"), condition(READINESS_GATE, "False", "CatchingUp"))


def test_progress_trainer_and_history_are_those_of_the_status() -> None:
    status = {"trainer": {"replicas": 1, "ready": 1, "totalRestarts": 2}}
    found = summarize(record(job=job(**status)), [SERVES])
    assert (found["namespace"], found["name"], found["phase"]) == ("team", "reverse", "Running")
    assert (found["step"], found["maxSteps"], found["weightVersion"]) == (9, 10, 9)
    assert found["trainer"] == {"replicas": 1, "ready": 1, "totalRestarts": 2}
    assert [epoch["cause"] for epoch in found["epochs"]] == ["JobStarted", "MemberLost"]
    assert "completionTime" not in found, "what is not known is left out"


def test_whether_training_gets_anywhere_is_the_reason_of_its_condition() -> None:
    status = {"conditions": [condition("Learning", "False", "RewardsAlike")]}
    assert summarize(record(job=job(**status)), [])["learning"] == "RewardsAlike"
    assert "learning" not in summarize(record(job=job(conditions=[])), [])


def test_steps_that_changed_nothing_are_counted() -> None:
    assert summarize(record(job=job(progress={"stepsAlike": 3})), [])["stepsAlike"] == 3
    assert "stepsAlike" not in summarize(record(job=job(progress={"stepsAlike": 0})), [])


async def test_only_the_job_and_its_rollouts_are_read() -> None:
    class Cluster:
        async def get(self, resource: Resource, **_: str) -> dict[str, Any]:
            assert resource is RL_JOBS
            return job()

        async def list(self, resource: Resource, **asked: str) -> list[dict[str, Any]]:
            assert resource is PODS
            assert asked["labels"] == "rollcall.dev/job=reverse,rollcall.dev/role=rollout"
            return [SERVES, BEHIND]

    client = cast("KubeClient", Cluster())
    found = await read_summary(client, namespace="team", name="reverse")
    assert [one["name"] for one in found["rollouts"]] == ["a", "b"]


def test_a_new_job_without_a_status_has_a_summary() -> None:
    found = summarize(record(job={**job(), "status": None}, steps=[]), [])
    assert found["name"] == "reverse"
    assert (found["problems"], found["pools"], found["epochs"], found["sessions"]) == (
        [],
        [],
        [],
        [],
    )


@pytest.mark.parametrize(
    ("kind", "status", "is_problem"),
    [
        ("WeightsInSync", "True", False),
        ("WeightsInSync", "False", True),
        ("WeightsInSync", "Unknown", True),
        ("Suspended", "False", False),
        ("Suspended", "True", True),
        ("Failed", "True", True),
        ("Failed", "False", False),
        ("Succeeded", "False", False),
    ],
)
def test_problems_are_the_conditions_of_no_job_that_trains(
    kind: str, status: str, is_problem: bool
) -> None:
    found = summarize(record(job=job(conditions=[condition(kind, status)])), [])
    assert [problem["type"] for problem in found["problems"]] == [kind] * is_problem


def test_policies_that_the_spec_disables_are_no_problem() -> None:
    disabled = condition("NetworkPoliciesEnforced", "Unknown", "NetworkPoliciesDisabled")
    assert summarize(record(job=job(conditions=[disabled])), [])["problems"] == []


@pytest.mark.parametrize(("cause", "reason"), [("Suspended", "Suspended"), ("Failed", "Finished")])
def test_what_only_follows_from_the_end_of_a_job_is_no_problem(cause: str, reason: str) -> None:
    conditions = [condition("TrainerReady", "False", reason), condition(cause, "True", "Why")]
    found = summarize(record(job=job(conditions=conditions)), [])
    assert [problem["type"] for problem in found["problems"]] == [cause]


def test_a_rollout_says_what_its_readiness_gate_says() -> None:
    serves, behind = describe_rollout(SERVES), describe_rollout(BEHIND)
    assert serves == {
        "name": "a",
        "pool": "cpu",
        "node": "node-1",
        "ready": True,
        "inSync": True,
        "reason": "InSync",
        "message": "so",
    }
    assert (behind["ready"], behind["inSync"], behind["reason"]) == (False, False, "CatchingUp")
    new = describe_rollout({"metadata": {"name": "c"}})
    assert new == {"name": "c", "ready": False, "inSync": False}
    leaves = describe_rollout(rollout("d", deletionTimestamp="2027-01-15T08:00:00Z"))
    assert leaves["reason"] == "Terminating"


def test_sessions_of_all_groups_are_in_the_order_of_their_times() -> None:
    groups = [
        {"name": "default", "sessions": [{"session": "1.1.1", "time": "2027-01-15T08:00:02Z"}]},
        {"name": "far", "sessions": [{"session": "1.1.2", "time": "2027-01-15T08:00:01Z"}]},
    ]
    found = summarize(record(job=job(syncGroups=groups)), [])
    assert [(s["group"], s["session"]) for s in found["sessions"]] == [
        ("far", "1.1.2"),
        ("default", "1.1.1"),
    ]
