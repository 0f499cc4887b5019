"""Every field of a job changes what its pods are given; those that only the operator needs are
listed.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_operator.api.crd import RLJOB, crd
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan.children import rollout as rollout_children
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import ObservedJob
from tests.apiserver.bad_manifests.manifests import (
    DELETE,
    EXTERNAL,
    FRONT,
    OWN_REFERENCE,
    Changes,
    changed,
    job,
    supervised_job,
)
from tests.certificates import authority, certificate_of
from tests.unit.rollcall_operator.plan.simulator import TRUST

SHOWN_ELSEWHERE = {
    "spec.cleanPodPolicy": "test_job_end.py",
    "spec.activeDeadlineSeconds": "test_job_end.py",
    "spec.ttlSecondsAfterFinished": "test_job_end.py",
    "spec.failurePolicy.maxRestarts": "test_failure.py",
    "spec.failurePolicy.stabilityWindowSeconds": "test_failure.py",
    "spec.failurePolicy.rules[0].exitCodes": "test_failure.py",
    "spec.failurePolicy.rules[0].action": "test_failure.py",
    "spec.membership.replaceAfterSeconds": "membership/test_replacement.py",
    # The API server keeps to them, in the RolloutPool that the job makes.
    "spec.rollouts[0].minReplicas": "children/test_children.py",
    "spec.rollouts[0].maxReplicas": "children/test_children.py",
}
"""Fields that no pod is given, and the test that shows their effect."""

BLOCKS = (".template", ".algorithm.settings")
"""Fields that are handed on as they are, with all that is in them."""

CLAIM: Changes = {"spec.trainer.checkpoint.volume": {"persistentVolumeClaim": {"claimName": "c"}}}
MEMORY: Changes = {"spec.trainer.checkpoint.volume": {"emptyDir": {"sizeLimit": "1Gi"}}}
OWN_TLS: Changes = {"spec.tls": {"secretName": "t", "caBundle": certificate_of(authority())}}
QUESTIONS, ROWS = "builtin:reasoning-gym/chain_sum", {"name": "org/rows"}
OWN_TRAINER: Changes = {**EXTERNAL, "spec.front": DELETE}
NEEDED: dict[str, Changes] = {
    "spec.": FRONT,
    "spec.data.sources": {"spec.data": {"sources": [ROWS]}},
    "spec.data.sources[0].config": {"spec.data": {"sources": [{"name": QUESTIONS}]}},
    "spec.reward.config": {"spec.reward.function": "exact-match"},
    "spec.reward.parts": {"spec.reward": {"parts": [{"name": "a", "function": "exact-match"}]}},
    "spec.reward.parts[0].style": {"spec.reward": {"parts": [{"name": "a", "function": "m:a"}]}},
    "spec.environment": {"spec.environment": {"function": "m:Game"}},
    "spec.trainer.startTimeoutSeconds": OWN_TRAINER,
    "spec.trainer.checkpoint": CLAIM,
    "spec.trainer.checkpoint.volume.emptyDir": MEMORY,
    "spec.algorithm.deterministic": {"spec.algorithm.maxStaleness": 0},
    "spec.reference": OWN_REFERENCE,
    "spec.reference.updateEvery": {"spec.reference": {}},
    "spec.critic": {"spec.algorithm.name": "ppo"},
    "spec.rewardModel": {"spec.rewardModel": {"path": "org/judge"}},
    "spec.evaluation": {"spec.evaluation": {"everySteps": 5, "source": ROWS}},
    "spec.data.sources[0].system": {"spec.data.sources[0].chat": True},
    "spec.evaluation.source.system": {"spec.evaluation.source": {**ROWS, "chat": True}},
    "spec.evaluation.source.config": {"spec.evaluation.source": {"name": QUESTIONS}},
    "spec.supervised.evaluation": {"spec.supervised.evaluation": {"source": ROWS}},
    "spec.supervised.evaluation.source.config": {
        "spec.supervised.evaluation.source": {"name": QUESTIONS}
    },
    "spec.supervised.evaluation.source.system": {
        "spec.supervised.evaluation.source": {**ROWS, "chat": True}
    },
    "spec.weightSync.groups": {"spec.weightSync.groups": [{"name": "far"}]},
    "spec.rollouts[0].syncGroup": {"spec.weightSync.groups": [{"name": "far"}]},
    "spec.weightSync.delta.": {"spec.weightSync.delta.enabled": True},
    "spec.weightSync.profile.": {"spec.weightSync.profile.enabled": True},
    "spec.tls.": OWN_TLS,
}
"""What the fields below a path need to have an effect."""

CHANGES: dict[str, Changes] = {
    "spec.algorithm.epochs": {"spec.algorithm.maxSteps": DELETE, "spec.algorithm.epochs": 3},
    "spec.supervised.maxSteps": {"spec.supervised": {"maxSteps": 2}},
    "spec.trainer.kind": OWN_TRAINER,
    "spec.environment.tools": {"spec.environment": {"tools": ["m:add"]}},
    "spec.front.withoutApiKeys": {
        "spec.front.apiKeysSecret": DELETE,
        "spec.front.withoutApiKeys": True,
    },
    "spec.tls.enabled": {"spec.tls": {"enabled": False}},
    "spec.tls.caBundle": {"spec.tls.caBundle": 2 * certificate_of(authority())},
    "spec.weightSync.delta.enabled": {"spec.weightSync.delta.enabled": False},
    "spec.weightSync.profile.enabled": {"spec.weightSync.profile.enabled": False},
}
"""How a field is changed together with others."""

VALUES: dict[str, Any] = {
    "spec.data.prompts": "builtin:first-letter",
    "spec.reward.function": "m:other",
    "spec.reward.config": {"strip": "x"},
    "spec.reward.parts[0].name": "b",
    "spec.reward.parts[0].function": "m:b",
    "spec.environment.function": "m:Chess",
    "spec.trainer.engine.name": "fsdp",
    "spec.trainer.engine.config": {"precision": "bf16"},
    "spec.trainer.checkpoint.volume.emptyDir.sizeLimit": "2Gi",
    "spec.trainer.exportPath": "/mnt/model",
    "spec.rollouts[0].engine.name": "transformers",
    "spec.rollouts[0].name": "gpu",
    "spec.rollouts[0].syncGroup": "far",
    "spec.algorithm.settings": {"clipLow": "0.1"},
    "spec.algorithm.sampling.stop": ["END"],
    "spec.algorithm.sampling.stopTokenIds": [3],
    "spec.algorithm.sampling.column": "settings",
    "spec.tracking.folder": "/mnt/events",
    "spec.tracking.wandbProject": "other",
    "spec.evaluation.passAt": [1, 2],
    "spec.weightSync.engine": "gloo",
    "spec.weightSync.groups[0].name": "near",
    "spec.weightSync.groups[0].engine": "store",
    "spec.weightSync.bucketSize": "1Mi",
    "spec.weightSync.delta.blockSize": "2Mi",
    "spec.weightSync.profile.path": "/mnt/traces",
    "spec.membership.heartbeatMilliseconds": 500,
    "spec.networkPolicy.egress": [],
}
OF_ROWS = {
    "name": "org/other",
    "subset": "a",
    "split": "test",
    "column": "question",
    "template": "{question}",
    "chat": True,
    "system": "Be brief.",
    "columns": ["answer"],
    "weight": 2,
    "config": {"seed": 1},
}


def leaves(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Fields that hold no others."""
    if path.endswith(BLOCKS) and schema["type"] == "object":
        if path.endswith(".settings"):
            yield path, schema
        return  # what is in a template is shown in children/test_pod_template.py
    inner = schema.get("items", schema).get("properties")
    if not inner:
        yield path, schema
        return
    at = f"{path}[0]" if schema["type"] == "array" else path
    for name, below in inner.items():
        yield from leaves(below, f"{at}.{name}")


(VERSION,) = crd(RLJOB)["spec"]["versions"]
FIELDS = dict(leaves(VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))
ONE_VALUE = {path for path, schema in FIELDS.items() if len(schema.get("enum", "xy")) == 1}


def change(path: str, schema: Any) -> Changes:
    """A change of the field to another valid value."""
    return CHANGES.get(path, {path: VALUES.get(path, another(path, schema))})


def another(path: str, schema: Any) -> Any:
    default, name = schema.get("default"), path.rpartition(".")[2]
    if ".sources[0]." in path or ".source." in path:
        return OF_ROWS[name]
    if "enum" in schema:
        return next(value for value in schema["enum"] if value not in {default, ""})
    if schema["type"] == "boolean":
        return not default
    if schema["type"] == "integer":
        return (schema["minimum"] if default is None else default) + 2
    if schema["type"] == "object":
        return {"any": 1}
    texts = {"path": "org/other", "claimName": "d", "secretName": "u"}
    return texts.get(name, "other" if name.endswith("Secret") else "0.25")


def given(manifest: Any) -> list[Any]:
    """What pods are made from: all children, and a Deployment in place of each pool."""
    spec = RLJobSpec.model_validate(manifest["spec"])
    manifest["spec"] = spec.model_dump(by_alias=True, exclude_none=True)
    manifest["metadata"] |= {"namespace": "team", "uid": "job-uid", "generation": 1}
    pools = [rollout_children.pool(manifest, entry, None) for entry in spec.rollouts or ()]
    for pool in pools:
        pool["metadata"] |= {"uid": "pool-uid", "resourceVersion": "1", "generation": 1}
    plan = make_plan(ObservedJob("team", "bad", 0.0, manifest, tuple(pools), trust=TRUST))
    (validated,) = (c for c in (plan.job_status or {})["conditions"] if c["type"] == "Validated")
    assert validated["status"] == "True", validated["message"]
    return [child for child in plan.applies if child["kind"] != "RolloutPool"]


@pytest.mark.parametrize("path", sorted(FIELDS.keys() - ONE_VALUE - SHOWN_ELSEWHERE.keys()))
def test_a_field_has_an_effect(path: str) -> None:
    supervised = path.startswith("spec.supervised")
    before = supervised_job() if supervised else job()
    for start, needed in NEEDED.items():
        if path.startswith(start) and not (supervised and needed is FRONT):
            before = changed(before, needed)
    assert given(changed(before, change(path, FIELDS[path]))) != given(before)
