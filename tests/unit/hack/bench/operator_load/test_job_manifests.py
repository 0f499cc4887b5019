"""The bare client of the bench creates the same objects as the operator."""

from collections import Counter

from hack.bench.operator_load.job_manifests import NAMESPACE, job, objects_of
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.validate import job_errors, parse


def test_a_job_is_valid_and_has_as_many_rollouts_as_asked_for() -> None:
    made = job(7, rollouts=9)
    spec, errors = parse(RLJobSpec, made["spec"], "spec")
    assert spec is not None
    assert (errors, job_errors(spec)) == ((), ())
    assert made["metadata"] == {"name": "job-00007", "namespace": NAMESPACE}
    assert made["spec"]["rollouts"][0]["replicas"] == 9


def test_all_children_of_a_job_without_owners() -> None:
    made = objects_of(job(7, rollouts=9))
    assert Counter(body["kind"] for body in made) == {
        "Secret": 1,
        "ConfigMap": 1,
        "NetworkPolicy": 2,
        "Service": 1,
        "StatefulSet": 1,
        "RolloutPool": 1,
        "Deployment": 1,
    }
    assert not any("ownerReferences" in body["metadata"] for body in made)
    assert {body["metadata"]["namespace"] for body in made} == {NAMESPACE}


def test_a_pod_comes_after_all_that_it_mounts() -> None:
    kinds = [body["kind"] for body in objects_of(job(7, rollouts=1))]
    assert max(kinds.index("Secret"), kinds.index("ConfigMap")) < kinds.index("StatefulSet")
