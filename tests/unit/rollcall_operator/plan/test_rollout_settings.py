"""Inference engines that do not fit the job, and settings of servers."""

import pytest

from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.rollout_settings import engine_errors
from tests.apiserver.bad_manifests.manifests import Changes, changed, job

REAL: Changes = {"spec.model.path": "org/model"}
ADAPTERS: Changes = {"spec.trainer.engine.config": {"loraRank": 8, "loraExport": "adapter"}}


def errors(engine: str, changes: Changes, **config: object) -> list[str]:
    used = {"spec.rollouts[0].engine": {"name": engine, "config": config}}
    spec = RLJobSpec.model_validate(changed(job(), {**REAL, **changes, **used})["spec"])
    return list(engine_errors(spec, (spec.rollouts or [])[0], "spec.rollouts[0]"))


@pytest.mark.parametrize(
    ("engine", "serves"),
    [("tiny", False), ("transformers", False), ("sglang", False), ("vllm", True)],
)
def test_adapters_are_served_by_vllm_alone(engine: str, serves: bool) -> None:
    found = errors(engine, ADAPTERS)
    assert (found == []) is serves
    assert errors(engine, {}) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_settings_of_the_agent_are_no_settings_of_its_server(engine: str) -> None:
    assert errors(engine, {}, concurrency=4) == []
