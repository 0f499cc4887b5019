"""Mistakes that only running pods reveal appear in a condition, with the field and what to do."""

from typing import Any

import pytest

from hack.cluster.examples import WORKER_IMAGE
from hack.cluster.kubectl import Kubectl, wait_for
from tests.apiserver.bad_manifests.case import Case
from tests.apiserver.bad_manifests.reported_in_a_condition import REPORTED_WHEN_PODS_RUN
from tests.cluster.jobs import deadlines


@pytest.mark.slow
@pytest.mark.timeout(deadlines.WHOLE_TEST)
def test_each_mistake_appears_in_a_condition(kubectl: Kubectl) -> None:
    waiting = {f"bad-{index}": case for index, case in enumerate(REPORTED_WHEN_PODS_RUN)}
    for name, case in waiting.items():
        kubectl.apply(_named(case.manifest, name))
    seen: dict[str, Any] = {}

    def all_reported() -> bool:
        for name, case in list(waiting.items()):
            seen[case.name] = _condition(kubectl, name, case)
            if _is_reported(seen[case.name], case):
                # At once: two cores do not carry nine jobs for long.
                kubectl.run("delete", "rljob", name, "--wait=false")
                del waiting[name]
        return not waiting

    try:
        wait_for("all mistakes to be reported", all_reported, seconds=deadlines.LEARNED, every=1)
    except TimeoutError as error:
        unreported = {
            case.name: (case.expected, case.says, seen[case.name]) for case in waiting.values()
        }
        raise AssertionError(f"{error}: {unreported}") from error


def _named(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    manifest["metadata"]["name"] = name
    for part in (manifest["spec"]["trainer"], *manifest["spec"]["rollouts"]):
        for container in part["template"]["spec"]["containers"]:
            if container["image"] == "rollcall/worker-cpu:dev":
                container["image"] = WORKER_IMAGE
    return manifest


def _condition(kubectl: Kubectl, name: str, case: Case) -> dict[str, Any] | None:
    conditions = kubectl.job(name).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == case.expected.type), None)


def _is_reported(condition: dict[str, Any] | None, case: Case) -> bool:
    if condition is None:
        return False
    found = (condition["status"], condition["reason"])
    return found == (case.expected.status, case.expected.reason) and all(
        part in condition["message"] for part in case.says
    )
