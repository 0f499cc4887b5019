"""Settings of training that contradict each other, or that nothing would use."""

from typing import Any

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.validate import job_errors
from tests.apiserver.bad_manifests.manifests import Changes, changed, job, supervised_job


def errors(manifest: Any, changes: Changes) -> list[str]:
    return list(job_errors(RLJobSpec.model_validate(changed(manifest, changes)["spec"])))


def test_a_mesh_is_of_all_processes_of_all_pods() -> None:
    engine = {"name": "torchtitan", "config": {"tensorParallel": 4}}
    mesh: Changes = {"spec.trainer.engine": engine, "spec.trainer.replicas": 2}
    assert errors(job(), {**mesh, "spec.trainer.processesPerPod": 2}) == []
    (error,) = errors(job(), mesh)
    assert "(spec.trainer.replicas 2 x processesPerPod 1); change the settings" in error


CLAIMS = {"claims": [{"name": "gpus"}, {"name": "nics"}]}


def test_the_ranks_of_a_pod_with_claims_are_given() -> None:
    """How many devices a claim has stands in another object."""
    container = "spec.trainer.template.spec.containers[0].resources"
    claimed: Changes = {container: CLAIMS}
    (error,) = errors(job(), claimed)
    assert error == (
        "spec.trainer.processesPerPod: the devices of the trainer's claims (gpus, nics) are not "
        "counted; set it to their number"
    )
    assert errors(job(), {**claimed, "spec.trainer.processesPerPod": 4}) == []
    assert errors(job(), {**claimed, "spec.trainer.device": "cpu"}) == []


@pytest.mark.parametrize(
    "unused",
    [
        {"reference": {"path": "org/model"}},
        {"critic": {"warmupSteps": 3}},
        {"environment": {"function": "m:Game"}},
        {"rewardModel": {"path": "org/judge"}},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_a_supervised_job_has_no_use_for_what_samples_need(unused: Changes) -> None:
    ((field, value),) = unused.items()
    (error,) = errors(supervised_job(), {f"spec.{field}": value})
    assert error == f"spec.{field}: supervised training has no use for it; remove it"


def test_a_part_of_the_reward_may_be_the_environments_where_there_is_one() -> None:
    parts = {"parts": [{"name": "a", "function": "m:a"}, {"name": "b", "function": "environment"}]}
    (error,) = errors(job(), {"spec.reward": parts})
    assert error.startswith("spec.reward.parts[1].function: environment is the reward of spec.env")
    game = {"spec.environment": {"function": "m:Game"}}
    assert errors(job(), {"spec.reward": parts, **game}) == []
