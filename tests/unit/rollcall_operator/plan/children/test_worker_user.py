"""Workers run as one user that the operator knows, so that the kubelet hides their token."""

from typing import Any

import pytest

from tests.apiserver.bad_manifests.manifests import OWN_REFERENCE, Changes
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

USER = 65532
POD = "spec.trainer.template.spec"
CONTEXT = f"{POD}.containers[0].securityContext"
ANOTHER = [{"name": "first", "image": "i"}]
LEFT_ALONE: list[tuple[str, Changes]] = [
    ("its own user", {CONTEXT: {"runAsUser": 1000}}),
    ("a user of the pod", {f"{POD}.securityContext": {"runAsUser": 1000}}),
    ("root", {CONTEXT: {"runAsUser": 0}}),
    ("privileges", {CONTEXT: {"privileged": True}}),
    ("an init container", {f"{POD}.initContainers": ANOTHER}),
    ("a sidecar", {f"{POD}.containers": [{"name": "trainer", "image": "i"}, *ANOTHER]}),
]


def contexts(changes: Changes | None = None, *, user: int | None = USER) -> dict[str, Any]:
    """Security contexts of the workers' containers, by child."""
    simulator = JobSimulator(changes)
    simulator.worker_user = user
    simulator.converge()
    return {
        name: child["spec"]["template"]["spec"]["containers"][0]["securityContext"]
        for name, child in simulator.children.items()
        if child["kind"] in {"StatefulSet", "Deployment"}
    }


def test_all_workers_get_the_user() -> None:
    made = contexts(OWN_REFERENCE)
    assert set(made) == {
        "StatefulSet/bad-trainer",
        "Deployment/bad-cpu",
        "Deployment/bad-reference",
    }
    for context in made.values():
        assert context["runAsUser"] == USER
        assert context["runAsNonRoot"] is True


@pytest.mark.parametrize(("what", "changes"), LEFT_ALONE, ids=[name for name, _ in LEFT_ALONE])
def test_a_template_decides_if_it_says_more(what: str, changes: Changes) -> None:
    made = contexts(changes)
    without = contexts(changes, user=None)
    assert made["StatefulSet/bad-trainer"] == without["StatefulSet/bad-trainer"], what
    assert made["Deployment/bad-cpu"]["runAsUser"] == USER


def test_without_the_setting_the_images_decide() -> None:
    assert all("runAsUser" not in context for context in contexts(user=None).values())
