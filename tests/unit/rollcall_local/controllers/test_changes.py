"""What controllers know of pods, and what a template becomes."""

import copy

from rollcall_local.controllers.changes import is_over, is_ready, pod_from, template_hash
from tests.unit.rollcall_local.controllers.pods_of import owner


def test_a_pod_has_the_templates_metadata_and_spec_and_its_owner() -> None:
    web = owner("Deployment", "web", 1)
    web["spec"]["template"]["metadata"]["annotations"] = {"a": "b"}
    pod = pod_from(web, name="web-1", labels={"more": "yes"})
    assert pod["metadata"] == {
        "name": "web-1",
        "namespace": "default",
        "labels": {"app": "web", "more": "yes"},
        "annotations": {"a": "b"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": "web",
                "uid": "uid-web",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    assert pod["spec"] == web["spec"]["template"]["spec"]


def test_a_pod_shares_nothing_with_its_template() -> None:
    web = owner("Deployment", "web", 1)
    before = copy.deepcopy(web)
    pod_from(web, name="web-1", labels={})["spec"]["containers"].clear()
    assert web == before


def test_templates_have_the_same_hash_if_they_say_the_same() -> None:
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1})
    assert template_hash({"a": 1}) != template_hash({"a": 2})


def test_a_pod_without_a_status_is_neither_ready_nor_over() -> None:
    assert not is_ready({"metadata": {}})
    assert not is_over({"metadata": {}})
