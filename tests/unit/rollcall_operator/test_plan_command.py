"""rollcall-operator plan: children and mistakes without a cluster."""

from pathlib import Path

import pytest
import yaml

from rollcall_operator.api import yaml_text
from rollcall_operator.plan_command import InvalidManifestError, children
from tests.apiserver.bad_manifests.case import Case
from tests.apiserver.bad_manifests.manifests import changed, external_job, job, pool
from tests.apiserver.bad_manifests.refused_at_apply import REFUSED_AT_APPLY
from tests.apiserver.bad_manifests.reported_in_a_condition import REPORTED_IN_A_CONDITION

EXAMPLES = Path(__file__).parents[3] / "examples"


def kinds(text: str) -> list[str]:
    return [document["kind"] for document in yaml.safe_load_all(text)]


def test_a_job_gets_all_its_children() -> None:
    out = children(yaml_text.dump(job()), namespace="n")
    assert kinds(out) == [
        *("NetworkPolicy", "NetworkPolicy"),
        *("Service", "StatefulSet", "RolloutPool", "Deployment"),
    ]


def test_a_lent_pool_in_the_same_file_gets_its_deployment() -> None:
    out = children(yaml_text.dump(job(), pool()), namespace="n")
    names = [d["metadata"]["name"] for d in yaml.safe_load_all(out) if d["kind"] == "Deployment"]
    assert sorted(names) == ["bad-cpu", "bad-pool"]


def test_an_external_trainer_gets_the_children_of_a_builtin_one() -> None:
    out = children(yaml_text.dump(external_job(), pool()), namespace="n")
    assert kinds(out) == [
        *("NetworkPolicy", "NetworkPolicy"),
        *("Service", "StatefulSet", "RolloutPool", "Deployment", "Deployment"),
    ]


def test_the_output_is_deterministic() -> None:
    text = yaml_text.dump(job())
    assert children(text, namespace="n") == children(text, namespace="n")


@pytest.mark.parametrize(
    "name",
    [
        "reverse.yaml",
        "reverse-no-sync.yaml",
        "reverse-vllm.yaml",
        "own-task/rljob.yaml",
        "calculator/rljob.yaml",
        "smollm/first-letter.yaml",
        "smollm/chain-sum.yaml",
    ],
)
def test_examples_are_right(name: str) -> None:
    out = children((EXAMPLES / name).read_text(), namespace="default")
    assert len(kinds(out)) == 6


def test_the_example_of_a_lent_pool_is_right() -> None:
    text = "\n---\n".join((EXAMPLES / n).read_text() for n in ("reverse.yaml", "extra-pool.yaml"))
    assert kinds(children(text, namespace="default")).count("Deployment") == 2


# What only a server can know: what was there before, and the rest of a PodSpec.
WITHOUT_A_SERVER = [
    case
    for case in (*REFUSED_AT_APPLY, *REPORTED_IN_A_CONDITION)
    if case.then is None and not case.before and case.expected.type == "Validated"
]
SERVER_ONLY = {
    "a misspelt field in a template",
    "a mount of no volume",
    "an egress rule that is none",
    "a misspelt field in an egress rule",
    "a container name that pods do not take",
    "a limit under its request",
}


@pytest.mark.parametrize(
    "case", [c for c in WITHOUT_A_SERVER if c.name not in SERVER_ONLY], ids=lambda c: c.name
)
def test_wrong_manifests_are_reported_with_the_same_path(case: Case) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        children(yaml_text.dump(case.manifest), namespace="n")
    path = case.says[0].split(" ")[0]
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no manifest found"),
        ("a: [", "not YAML"),
        ("- 1", "document 1: kind: must be RLJob or RolloutPool"),
        ("kind: Pod\nmetadata: {name: p}", "Pod p: kind: must be RLJob or RolloutPool"),
        ("kind: RLJob\napiVersion: v1", "RLJob 1: apiVersion: must be rollcall.dev/v1alpha1"),
        ("kind: RLJob\napiVersion: rollcall.dev/v1alpha1", "metadata.name: is required"),
        (
            "kind: RLJob\napiVersion: rollcall.dev/v1alpha1\nmetadata: {name: j}",
            "RLJob j: spec: is required",
        ),
    ],
)
def test_what_is_no_manifest_at_all(text: str, message: str) -> None:
    with pytest.raises(InvalidManifestError, match=message):
        children(text, namespace="n")


def test_all_mistakes_are_reported_at_once() -> None:
    wrong = changed(job(), {"spec.trainer.replicas": 0, "spec.algorithm.groupSize": 0})
    with pytest.raises(InvalidManifestError) as caught:
        children(yaml_text.dump(wrong), namespace="n")
    assert len(str(caught.value).splitlines()) == 2
