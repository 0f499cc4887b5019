"""Manifests with random changes: each is refused by name, or planned with; no traceback.

`tests/apiserver/test_mutated_manifests.py` gives the same to a real API server and the operator.
"""

import json
from typing import Any

import orjson
import pytest

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.errors import ApiStatusError
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator import plan_command
from rollcall_operator.api.conditions import JobCondition
from rollcall_operator.api.status import RLJobStatus
from rollcall_operator.kube.resources import RL_JOBS, resource_of
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.manifest_check import check_manifest
from rollcall_operator.plan.model import ObservedJob
from tests.apiserver.mutated_manifests import manifest
from tests.unit.memory_growth import no_growth

WARM_UP, MANY = 20, 1000
MOST_BYTES = 1 << 20


@pytest.mark.parametrize("count", [100, pytest.param(MANY, marks=pytest.mark.slow)])
def test_manifests_with_random_changes_are_refused_or_planned_with(count: int) -> None:
    for seed in range(WARM_UP):
        judge(seed)
    with no_growth(most=MOST_BYTES, measured=count == MANY):
        outcomes = [judge(seed) for seed in range(WARM_UP, count)]
    assert set(outcomes) == {"refused", "reported", "planned"}


def judge(seed: int) -> str:
    """What becomes of the manifest of this seed. AssertionError names the seed."""
    body = manifest(seed)
    body["metadata"]["namespace"] = "ns"
    checked = check_manifest(body)
    stored, problem = taken(body)
    if stored is None:
        assert len(problem) > 20, seed
        assert checked.errors or "metadata." in problem, (seed, problem)
        return "refused"
    is_job = stored["kind"] == RL_JOBS.kind
    validated = first_status(stored, seed) if is_job else str(not checked.errors)
    assert validated == str(not checked.errors), (seed, checked.errors)
    if checked.errors:
        return "reported"
    assert not is_job or plan_command.children_of([checked.body], []), seed
    return "planned"


def taken(body: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object as the API server of `rollcall local` stores it, or None and why it does not."""
    store = ObjectStore(admit=admit)
    sent = orjson.loads(json.dumps(body))
    try:
        return store.apply(resource_of(body["kind"]), sent, manager="a-user", force=True), ""
    except ApiStatusError as error:
        return None, str(error)


def first_status(job: dict[str, Any], seed: int) -> str:
    """Of the condition Validated, in the status that the operator writes first."""
    name = job["metadata"]["name"]
    plan = make_plan(ObservedJob(namespace="ns", name=name, now=1_800_000_000.0, job=job))
    assert plan.job_status is not None, seed
    status = RLJobStatus.read(json.loads(json.dumps(plan.job_status, allow_nan=False)))
    return next(each.status for each in status.conditions if each.type == JobCondition.VALIDATED)
