"""Wrong manifests: refused at apply, or reported in a condition, with the path and what to do."""

from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS
from tests.apiserver.bad_manifests.case import Case
from tests.apiserver.bad_manifests.manifests import job
from tests.apiserver.bad_manifests.refused_at_apply import REFUSED_AT_APPLY
from tests.apiserver.bad_manifests.reported_in_a_condition import REPORTED_IN_A_CONDITION
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    all_children,
    eventually,
    example,
    operator_writes,
    writes_settled,
)

pytestmark = pytest.mark.usefixtures("operator")


def ids(case: Case) -> str:
    return case.name


def test_the_table_is_long_enough() -> None:
    assert len(REFUSED_AT_APPLY) + len(REPORTED_IN_A_CONDITION) >= 25


@pytest.mark.parametrize("case", REFUSED_AT_APPLY, ids=ids)
async def test_refused_at_apply(user: ClusterUser, case: Case) -> None:
    for manifest in case.before:
        await user.apply(manifest)
    wrong = case.manifest
    if case.second is not None:
        await user.apply(case.manifest)
        wrong = case.second
    with pytest.raises(RefusedError) as refusal:
        await user.apply(wrong)
    for part in case.says:
        assert part.lower() in refusal.value.message.lower()


def reported_cases() -> Iterator[Any]:
    """The first case of each condition and reason is quick; the golden files have all."""
    seen = set[object]()
    for case in REPORTED_IN_A_CONDITION:
        what = (case.kind, case.expected)
        yield pytest.param(case, marks=[pytest.mark.slow] if what in seen else [], id=case.name)
        seen.add(what)


@pytest.mark.parametrize("case", [*reported_cases()])
async def test_reported_in_a_condition(user: ClusterUser, cluster: Cluster, case: Case) -> None:
    for manifest in case.before:
        await user.apply(manifest)
    await user.apply(case.manifest)
    if case.second is not None:
        await all_children(user, case.manifest["metadata"]["name"])
        await user.apply(case.second)
    resource = RL_JOBS if case.kind == "RLJob" else ROLLOUT_POOLS
    name, expected = case.manifest["metadata"]["name"], case.expected
    seen: object = None

    async def reported() -> bool:
        nonlocal seen
        seen = found = await user.condition(resource, name, expected.type)
        if found is None or (found["status"], found["reason"]) != (
            expected.status,
            expected.reason,
        ):
            return False
        return all(part in found["message"] for part in case.says)

    try:
        await eventually(reported, f"{expected} that says {case.says}", seconds=10)
    except AssertionError as error:
        raise AssertionError(f"{error}; there is {seen}") from None
    live = await user.get(resource, name)
    condition = await user.condition(resource, name, expected.type)
    assert condition is not None
    assert condition["observedGeneration"] == live["metadata"]["generation"]
    # Said once: the operator does not go on writing, or trying, in a loop.
    await writes_settled(user, cluster, seconds=0.5)


async def test_a_good_job_goes_on_beside_bad_ones(user: ClusterUser) -> None:
    case = next(case for case in REPORTED_IN_A_CONDITION if case.name.startswith("a misspelt"))
    await user.apply(case.manifest)
    await user.apply(example("good"))
    await all_children(user, "good")


async def test_a_corrected_manifest_goes_ahead(user: ClusterUser) -> None:
    case = next(case for case in REPORTED_IN_A_CONDITION if case.name.startswith("a misspelt"))
    await user.apply(case.manifest)

    async def valid(status: str) -> bool:
        found = await user.condition(RL_JOBS, "bad", "Validated")
        return found is not None and found["status"] == status

    await eventually(lambda: valid("False"), "Validated=False")
    await user.apply(job())
    await eventually(lambda: valid("True"), "Validated=True")
    await all_children(user, "bad")


async def test_an_exceeded_quota_is_reported_and_the_job_starts_when_it_is_raised(
    user: ClusterUser, cluster: Cluster
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/statefulsets.apps": "0"}},
    }
    await user.apply(quota)
    await user.apply(example())

    async def reported() -> bool:
        found = await user.condition(RL_JOBS, "reverse", "Validated")
        return found is not None and "exceeded quota" in found["message"]

    await eventually(reported, "the quota in a condition")
    writes = len(operator_writes(cluster.writes(), namespace=user.namespace))
    quota["spec"] = {"hard": {"count/statefulsets.apps": "1"}}
    await user.apply(quota)
    await all_children(user)  # asked again after ten seconds
    later = operator_writes(cluster.writes(), namespace=user.namespace)
    assert len(later) - writes <= 6, later
