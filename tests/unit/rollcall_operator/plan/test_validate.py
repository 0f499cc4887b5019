"""What of a pod template is reserved for the operator, in every container of every role."""

from typing import Any

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.validate import job_errors, name_errors, parse
from tests.apiserver.bad_manifests.manifests import (
    FRONT,
    OWN_REFERENCE,
    Changes,
    changed,
    job,
)

WHOLE: Changes = {**OWN_REFERENCE, **FRONT}
ROLES = ("spec.trainer", "spec.reference", "spec.front", "spec.rollouts[0]")


def errors(changes: Changes) -> list[str]:
    return list(job_errors(RLJobSpec.model_validate(changed(job(), WHOLE | changes)["spec"])))


def test_a_job_with_all_kinds_of_pods_is_valid() -> None:
    assert errors({}) == []


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_pods_of_every_role_are_always_restarted(role: str, policy: str) -> None:
    (error,) = errors({f"{role}.template.spec.restartPolicy": policy})
    assert error.startswith(f"{role}.template.spec.restartPolicy: must be Always, not '{policy}'")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_variables_of_the_operator_are_reserved_in_every_container(role: str, kind: str) -> None:
    container = {"name": "own", "image": "i", "env": [{"name": "ROLLCALL_ANY", "value": "x"}]}
    place = f"{role}.template.spec.{kind}[0]"
    if kind == "containers":
        (error,) = errors({f"{place}.env": container["env"]})
    else:
        (error,) = errors({f"{role}.template.spec.{kind}": [container]})
    assert error.startswith(f"{place}.env[0].name: variables that begin with ROLLCALL_ are reserve")


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/rollcall/token",
        "/var/run/rollcall/trust",
        "/var/lib/rollcall/state",
        "/var/lib/rollcall/checkpoints",
    ],
)
def test_folders_of_the_operator_are_reserved(path: str) -> None:
    mounts = [{"name": "mine", "mountPath": path}]
    field = "spec.trainer.template.spec.containers[0].volumeMounts"
    (error,) = errors({field: mounts})
    assert error == (
        f"{field}[0].mountPath: {path} is reserved for the operator; mount it elsewhere"
    )


def test_the_size_of_the_checkpoints_folder_is_a_quantity() -> None:
    volume = {"emptyDir": {"sizeLimit": "ten"}}
    (error,) = errors({"spec.trainer.checkpoint": {"volume": volume}})
    assert error.startswith("spec.trainer.checkpoint.volume.emptyDir.sizeLimit: 'ten' is not a qua")


def test_a_lent_pool_does_not_take_the_name_of_the_references_deployment() -> None:
    spec = RLJobSpec.model_validate(changed(job(), WHOLE)["spec"])
    (error,) = name_errors(spec, "bad", "bad-reference")
    assert error.startswith("metadata.name: the reference's pods")
    assert list(name_errors(spec, "bad", "other-reference")) == []


def test_of_a_long_value_the_beginning_is_shown() -> None:
    wrong: Any = changed(job(), {"spec.algorithm.groupSize": "9" * 500})
    _, (error,) = parse(RLJobSpec, wrong["spec"], "spec")
    assert error == f"spec.algorithm.groupSize: must be an integer, not '{'9' * 99} ..."
