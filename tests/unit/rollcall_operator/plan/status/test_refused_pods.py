"""A quota, a limit or an admission policy that refuses pods reaches the job's conditions."""

import pytest

from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool

QUOTA = (
    'pods "bad-cpu-6d9f-x2x7z" is forbidden: exceeded quota: small, requested: pods=1, used: '
    "pods=3, limited: pods=3"
)


def refuse(simulator: JobSimulator, deployment: str, message: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    simulator.children[f"Deployment/{deployment}"]["status"] = {
        "conditions": [{**failure, "message": message}]
    }


def starting() -> JobSimulator:
    simulator = JobSimulator()
    simulator.converge()
    return simulator


def test_a_quota_reaches_the_condition_of_the_rollouts_with_field_and_cure() -> None:
    simulator = starting()
    refuse(simulator, "bad-cpu", QUOTA)
    simulator.converge(2)
    condition = simulator.condition("RolloutsReady")
    assert (condition["status"], condition["reason"]) == ("False", "PodsRefused")
    assert condition["message"] == (
        "spec.rollouts[0].template: the API server refuses pods of Deployment/bad-cpu: exceeded "
        "quota: small, requested: pods=1, used: pods=3, limited: pods=3; raise the ResourceQuota of"
        " the namespace, or ask for fewer replicas or smaller resources"
    )
    assert simulator.pool_condition("bad-cpu", "Ready")["reason"] == "PodsRefused"


def test_a_quota_reaches_the_condition_of_the_trainer() -> None:
    simulator = starting()
    simulator.creation_failures["StatefulSet/bad-trainer"] = (
        "create Pod bad-trainer-0 in StatefulSet bad-trainer failed error: pods "
        '"bad-trainer-0" is forbidden: failed quota: q: must specify limits.memory for: trainer'
    )
    simulator.converge(2)
    message = simulator.condition("TrainerReady")["message"]
    assert message == (
        "spec.trainer.template: the API server refuses pods of StatefulSet/bad-trainer: failed "
        "quota: q: must specify limits.memory for: trainer; set resources.requests and "
        "resources.limits of every container, as the ResourceQuota of the namespace asks"
    )


def test_a_lent_pool_names_its_own_field() -> None:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.converge()
    refuse(simulator, "lent", QUOTA)
    simulator.converge(2)
    message = simulator.pool_condition("lent", "Ready")["message"]
    assert message.startswith("spec.template: the API server refuses pods of Deployment/lent")


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (
            'pods "p" is forbidden: [maximum memory usage per Container is 1Gi, but limit is 2Gi]',
            "change the containers' resources so that they fit the LimitRange",
        ),
        (
            (
                'pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged '
                '(container "rollout" must not set securityContext.privileged=true)'
            ),
            "correct the securityContext, or use a namespace with a lower Pod Security level",
        ),
        (
            (
                "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'no-latest' with binding 'all' "
                "denied request: image tags must not be latest"
            ),
            "correct the template as the policy says",
        ),
        (
            (
                'pods "p" is forbidden: error looking up service account team/x: '
                'serviceaccount "x" not found'
            ),
            "create the ServiceAccount, or correct spec.serviceAccountName",
        ),
        ("something new", "correct the template, or what refuses it"),
    ],
    ids=["limit range", "pod security", "policy", "service account", "unknown"],
)
def test_each_cause_has_its_cure(message: str, cure: str) -> None:
    simulator = starting()
    refuse(simulator, "bad-cpu", message)
    simulator.converge(2)
    assert f"; {cure}" in simulator.condition("RolloutsReady")["message"]


def test_the_message_does_not_change_with_the_pods_that_are_tried() -> None:
    simulator = starting()
    refuse(simulator, "bad-cpu", QUOTA)
    simulator.converge(2)
    before = simulator.condition("RolloutsReady")["message"]
    refuse(simulator, "bad-cpu", QUOTA.replace("x2x7z", "9qq2m"))
    simulator.converge(2)
    assert simulator.condition("RolloutsReady")["message"] == before


def test_it_ends_when_the_pods_are_created() -> None:
    simulator = starting()
    refuse(simulator, "bad-cpu", QUOTA)
    simulator.converge(2)
    simulator.children["Deployment/bad-cpu"]["status"] = {"conditions": []}
    simulator.converge(2)
    assert simulator.condition("RolloutsReady")["reason"] == "Starting"


def test_a_trainer_without_pods_is_looked_at_again() -> None:
    simulator = starting()
    assert (simulator.reconcile(60).requeue_after or 99) <= 10
