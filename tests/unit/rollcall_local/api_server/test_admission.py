"""The models admit, refuse and complete as the definitions in crds/ have an API server do."""

import copy
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.errors import InvalidError
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.rules import VALIDATIONS
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    STATEFUL_SETS,
    Resource,
)
from tests.apiserver.bad_manifests.case import Case
from tests.apiserver.bad_manifests.manifests import (
    Changes,
    changed,
    external_job,
    supervised_job,
)
from tests.apiserver.bad_manifests.refused_at_apply import CA_BUNDLE, REFUSED_AT_APPLY
from tests.apiserver.bad_manifests.reported_in_a_condition import REPORTED_IN_A_CONDITION
from tests.unit.rollcall_local.api_server.objects import ROOT, Object, config_map, job, pod, pool

RESOURCES = {"RLJob": RL_JOBS, "RolloutPool": ROLLOUT_POOLS}
EXAMPLES = [
    body
    for path in sorted((ROOT / "examples").rglob("*.yaml"))
    for body in yaml.safe_load_all(path.read_text())
    if body and body["kind"] in RESOURCES
]
SCHEMAS = {
    body["spec"]["names"]["kind"]: body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in (ROOT / "crds").iterdir()
    for body in [yaml.safe_load(path.read_text())]
}


def defaulted(value: Any, schema: Any) -> Any:
    """What a structural schema's defaults make of a value."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        whole = {
            **{n: copy.deepcopy(s["default"]) for n, s in properties.items() if "default" in s},
            **value,
        }
        return {name: defaulted(inner, properties.get(name, {})) for name, inner in whole.items()}
    if isinstance(value, list):
        return [defaulted(inner, schema.get("items", {})) for inner in value]
    return value


@pytest.mark.parametrize(
    "body",
    [*EXAMPLES, supervised_job(), external_job(), pool()],
    ids=lambda body: body["metadata"]["name"],
)
def test_defaults_are_those_of_the_definitions(body: Object) -> None:
    schema = SCHEMAS[body["kind"]]["properties"]["spec"]
    admitted = admit(RESOURCES[body["kind"]], body, None)
    assert without_empty_lists(admitted["spec"]) == defaulted(body["spec"], schema)
    assert admit(RESOURCES[body["kind"]], admitted, None) == admitted


def without_empty_lists(value: Any) -> Any:
    """The models have such lists as defaults, the definitions leave them out."""
    if isinstance(value, dict):
        return {name: without_empty_lists(v) for name, v in value.items() if v != []}
    return [without_empty_lists(v) for v in value] if isinstance(value, list) else value


# --- refusals ------------------------------------------------------------------------------------

REFUSED_EARLIER = {
    "a label of pods that is a number",
    "settings of a source that takes none",
    "settings of module:callable",
    "settings of a part that is module:callable",
    "settings of tools",
    "settings of a reward beside its parts",
    "a builtin reward in the style of TRL",
    "a part that is a builtin reward in the style of verl",
}
"""What the operator reports in a condition of a job that a real API server has taken."""


def write_all(case: Case, store: ObjectStore) -> Iterator[Object]:
    """Yield each object of a case, and then apply it."""
    manifests = [*case.before, case.manifest, *([case.second] if case.second else [])]
    for manifest in manifests:
        body = copy.deepcopy(manifest)
        body["metadata"]["namespace"] = "ns"
        yield body
        resource = RESOURCES[body["kind"]]
        store.apply(resource, body, manager="a-user", force=True)


@pytest.mark.parametrize("case", REFUSED_AT_APPLY, ids=lambda case: case.name)
def test_what_a_real_server_refuses_is_refused_by_the_same_field(case: Case) -> None:
    store, bodies = ObjectStore(admit=admit), list[Object]()
    with pytest.raises(InvalidError) as refused:
        bodies.extend(write_all(case, store))
    assert len(bodies) == len(case.before) + 1 + (case.then is not None), "the last one is wrong"
    assert case.says[0].split(" ")[0] in str(refused.value)


@pytest.mark.parametrize("case", REPORTED_IN_A_CONDITION, ids=lambda case: case.name)
def test_what_a_real_server_takes_is_taken_but_for_what_the_operator_would_not(case: Case) -> None:
    store = ObjectStore(admit=admit)
    if case.name not in REFUSED_EARLIER:
        assert [*write_all(case, store)]
        return
    with pytest.raises(InvalidError, match=re.escape(case.says[0].split(" ")[0])):
        list(write_all(case, store))


def test_every_mistake_is_named() -> None:
    body = changed(job("a.b"), {"spec.trainer.replicas": 0, "spec.nonsense": 1})
    with pytest.raises(InvalidError) as refused:
        admit(RL_JOBS, body, None)
    said = str(refused.value)
    assert said.startswith('RLJob "a.b" is invalid: metadata.name must be lower-case letters')
    assert "spec.trainer.replicas: must be at least 1, not 0" in said
    assert "spec.nonsense: unknown field" in said


@pytest.mark.parametrize("spec", [None, [], "x", 5])
def test_a_spec_is_a_map(spec: Any) -> None:
    with pytest.raises(InvalidError, match="spec: must be a map"):
        admit(RL_JOBS, {**job(), "spec": spec}, None)


# --- what may become of what is there ------------------------------------------------------------

FRONT = {"apiKeysSecret": "agents", "template": job()["spec"]["trainer"]["template"]}
REFERENCE = {"template": job()["spec"]["trainer"]["template"]}
CHECKPOINT: Object = {"volume": {"emptyDir": {}}}
TLS: Changes = {"spec.tls": {"secretName": "a", "caBundle": CA_BUNDLE}}

CHANGES: dict[str, Changes] = {
    ".data": {"spec.data.seed": 1},
    ".reward": {"spec.reward.timeoutSeconds": 5},
    ".environment": {"spec.environment": {"function": "a:B"}},
    ".trainer.replicas": {"spec.trainer.replicas": 2},
    ".trainer.processesPerPod": {"spec.trainer.processesPerPod": 2},
    ".trainer.device": {"spec.trainer.device": "cpu"},
    ".trainer.checkpoint": {"spec.trainer.checkpoint": CHECKPOINT},
    ".trainer.recoverFrom": {"spec.trainer.recoverFrom": "Rollouts"},
    ".reference.path": {"spec.reference": {"path": "builtin:reverse-tiny"}},
    ".reference.updateEvery": {"spec.reference": {"updateEvery": 5}},
    ".reference.template": {"spec.reference": REFERENCE},
    ".critic": {"spec.critic": {"warmupSteps": 5}},
    ".rewardModel": {"spec.rewardModel": {"path": "builtin:reverse-tiny"}},
    ".health": {"spec.health": {"maxSkippedSteps": 7}},
    ".evaluation": {"spec.evaluation": {"everySteps": 10, "source": {"name": "builtin:reverse"}}},
    ".tracking": {"spec.tracking": {"folder": "/tb"}},
    ".observe": {"spec.observe": {"samples": {"share": "1"}}},
    ".algorithm": {"spec.algorithm.maxSteps": 7},
    ".weightSync": {"spec.weightSync": {"enabled": False}},
    ".membership": {"spec.membership": {"minRollouts": 2}},
    ".tls.enabled": {"spec.tls": {"enabled": False}},
    ".tls.secretName": TLS,
}
"""A change of each field that stays as long as the job is not suspended."""

NOT_ALONE = {".model", ".trainer.engine.name", ".trainer.kind", ".front", ".supervised"}
"""Those with tests of their own."""


def transition_rules(kind: str) -> list[Any]:
    """The rules of a definition that compare with what is there, wherever they are."""

    def inside(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield from ((path, rule) for rule in schema.get(VALIDATIONS, ()))
        for name, inner in schema.get("properties", {}).items():
            yield from inside(inner, f"{path}.{name}")
        for inner in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(inner, dict):
                yield from inside(inner, f"{path}[]")

    return [(at, rule) for at, rule in inside(SCHEMAS[kind], "") if "oldSelf" in rule["rule"]]


@pytest.mark.parametrize(
    ("kind", "model"), [("RLJob", RLJobSpec), ("RolloutPool", RolloutPoolSpec)]
)
def test_each_rule_of_the_definitions_about_what_was_there_has_one_in_python(
    kind: str, model: type[RLJobSpec] | type[RolloutPoolSpec]
) -> None:
    defined = transition_rules(kind)
    assert {at for at, _ in defined} == {".spec"}, "where admission looks for them"
    known = {(rule.cel, rule.message, rule.path) for rule in model.RULES if rule.allows is not None}
    assert known == {(rule["rule"], rule["message"], rule["fieldPath"]) for _, rule in defined}


def test_a_change_of_each_field_is_tested() -> None:
    paths = {rule.path for rule in RLJobSpec.RULES if rule.allows is not None}
    assert CHANGES.keys() | NOT_ALONE == paths


def update(before: Object, now: Object, resource: Resource = RL_JOBS) -> Object:
    return admit(resource, now, admit(resource, before, None))


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("undo", [False, True])
def test_what_a_running_job_is_made_of_stays(path: str, undo: bool) -> None:
    one, other = job(), changed(job(), CHANGES[path])
    if undo:
        one, other = other, one
    with pytest.raises(InvalidError, match=rf"spec\{path}: .*set spec.suspend: true first"):
        update(one, other)
    suspended = changed(one, {"spec.suspend": True})
    update(suspended, changed(other, {"spec.suspend": True}))
    update(suspended, other)
    with pytest.raises(InvalidError, match=rf"spec\{path}: "):
        update(one, changed(other, {"spec.suspend": True}))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"spec.model.path": "/models/other"}, ".model"),
        ({"spec.trainer.engine": {"name": "fsdp"}}, ".trainer.engine.name"),
    ],
)
def test_what_checkpoints_depend_on_stays_for_good(changes: Changes, path: str) -> None:
    for suspend in (False, True):
        before = changed(job(), {"spec.suspend": suspend})
        with pytest.raises(InvalidError, match=rf"spec\{path}: is immutable .* another RLJob"):
            update(before, changed(before, changes))


@pytest.mark.parametrize("suspend", [False, True])
def test_who_trains_stays_for_good(suspend: bool) -> None:
    builtin, external = (
        changed(body, {"spec.suspend": suspend}) for body in (job(), external_job())
    )
    for before, now in ((builtin, external), (external, builtin)):
        with pytest.raises(
            InvalidError, match=r"spec\.trainer\.kind: is immutable .* another RLJob"
        ):
            update(before, now)


def test_a_front_comes_while_a_job_is_suspended_and_stays() -> None:
    plain, fronted = job(), changed(job(), {"spec.front": FRONT})
    suspended: Changes = {"spec.suspend": True}
    with pytest.raises(InvalidError, match=r"spec\.front: "):
        update(plain, fronted)
    update(changed(plain, suspended), fronted)
    for before, now in itertools.product(
        (fronted, changed(fronted, suspended)), (plain, changed(plain, suspended))
    ):
        with pytest.raises(InvalidError, match=r"spec\.front: "):
            update(before, now)
    update(fronted, changed(fronted, {"spec.front.replicas": 2}))


def test_how_a_job_learns_changes_while_it_is_suspended() -> None:
    supervised = supervised_job()
    with pytest.raises(InvalidError, match=r"spec\.supervised: "):
        update(supervised, changed(supervised, {"spec.supervised.epochs": 3}))
    suspended = changed(supervised, {"spec.suspend": True})
    update(suspended, changed(supervised, {"spec.supervised.epochs": 3}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"spec.rollouts[0].replicas": 5},
        {"spec.rollouts[0].name": "other"},
        {"spec.cleanPodPolicy": "All"},
        {"spec.suspend": True},
        {"spec.trainer.template.spec.containers[0].image": "next"},
        {"metadata.labels": {"a": "b"}},
    ],
)
def test_the_rest_of_a_running_job_may_change(changes: Changes) -> None:
    update(job(), changed(job(), changes))


def test_a_pool_stays_with_its_job() -> None:
    with pytest.raises(InvalidError, match=r"spec.jobRef: is immutable; delete the pool"):
        update(pool(), pool(jobRef={"name": "another"}), ROLLOUT_POOLS)
    update(pool(), pool(replicas=3), ROLLOUT_POOLS)


def test_what_an_earlier_version_has_stored_is_named() -> None:
    with pytest.raises(InvalidError, match=r"of another version: spec\.gone: unknown field"):
        admit(RL_JOBS, job(), changed(job(), {"spec.gone": 1}))


# --- Kubernetes' own kinds -----------------------------------------------------------------------

TEMPLATE = {"spec": pod()["spec"]}


def workload(**spec: Any) -> Object:
    return {"metadata": {"name": "d", "namespace": "ns"}, "spec": {"template": TEMPLATE, **spec}}


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (CONFIG_MAPS, config_map(x="1")),
        (CONFIG_MAPS, {**config_map(), "binaryData": {"x": "YWJj"}}),
        (SECRETS, {**config_map(), "data": {"x": "YWJj"}, "type": "Opaque"}),
        (SECRETS, {"metadata": {"name": "s"}, "stringData": {"x": "a b"}}),
        (PODS, pod()),
        (DEPLOYMENTS, workload()),
        (STATEFUL_SETS, workload(replicas=0, serviceName="s")),
        (LEASES, {"metadata": {"name": "l"}, "spec": "is not read"}),
    ],
)
def test_what_is_well_formed_is_taken_as_it_is(resource: Resource, body: Object) -> None:
    assert admit(resource, body, None) == body


@pytest.mark.parametrize(
    ("resource", "body", "message"),
    [
        (CONFIG_MAPS, {**config_map(), "data": {"x": 5}}, "data.x: must be a string"),
        (CONFIG_MAPS, {**config_map(), "data": []}, "data: must be a map"),
        (CONFIG_MAPS, {**config_map(), "binaryData": {"x": "%"}}, "binaryData.x: must be base64"),
        (SECRETS, {**config_map(), "data": {"x": "plain!"}}, "data.x: must be base64; use string"),
        (PODS, {**pod(), "spec": {}}, 'Pod "p" is invalid: spec.containers: is required'),
        (PODS, {**pod(), "spec": None}, "spec: must be a map"),
        (PODS, {**pod(), "spec": {"containers": []}}, "spec.containers: must have 1 to 32"),
        (DEPLOYMENTS, {"metadata": {"name": "d"}}, "spec: is required"),
        (DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": []}, "spec: must be a map"),
        (DEPLOYMENTS, workload(replicas=-1), "spec.replicas: must be at least 0"),
        (DEPLOYMENTS, workload(replicas="1"), "spec.replicas: must be an integer"),
        (STATEFUL_SETS, workload(template={}), "spec.template.spec: is required"),
        (STATEFUL_SETS, workload(volumeClaimTemplates=[{}]), r"Templates\[0\].spec: is required"),
    ],
)
def test_what_controllers_or_kubelet_could_not_read_is_refused(
    resource: Resource, body: Object, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        admit(resource, body, None)
