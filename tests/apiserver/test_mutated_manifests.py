"""A thousand mutated manifests: each gets an answer, and none disturbs the operator.

The gate has the first batch.
"""

import asyncio
from collections import Counter

import pytest

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import resource_of
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    all_children,
    eventually,
    example,
    writes_settled,
)
from tests.apiserver.mutated_manifests import manifest

pytestmark = pytest.mark.usefixtures("operator")

BATCH = 50
BATCHES = [
    pytest.param(first, marks=[pytest.mark.slow] if first else [])
    for first in range(0, 1000, BATCH)
]
MOST_WRITES = 60
"""Of the operator, in a batch's life, for one job: its start takes some 12, three retries 30."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", BATCHES)
async def test_each_is_refused_or_answered_in_a_condition(
    user: ClusterUser, cluster: Cluster, first: int
) -> None:
    seeds = range(first, first + BATCH)
    accepted = [made for seed in seeds if (made := await accept(user, manifest(seed)))]
    await asyncio.gather(*(answered(user, made) for made in accepted))
    await user.apply(example("good"))
    await all_children(user, "good")
    writes = await writes_settled(user, cluster)
    about = Counter(text.split()[1].rsplit("/", 1)[-1] for text in writes)
    assert not [each for each in about.items() if each[1] > MOST_WRITES]
    for made in accepted:
        await user.delete(resource_of(made["kind"]), made["metadata"]["name"])


async def accept(user: ClusterUser, made: Object) -> Object | None:
    """Apply it; None if the API server refuses it. Any other error fails the test."""
    try:
        return await user.apply(made)
    except RefusedError:
        return None


async def answered(user: ClusterUser, made: Object) -> None:
    """Wait for a condition about this generation."""
    resource, name = resource_of(made["kind"]), made["metadata"]["name"]

    async def about_it() -> bool:
        live = await user.get(resource, name)
        generation = live["metadata"]["generation"]
        conditions = (live.get("status") or {}).get("conditions") or ()
        return any(each.get("observedGeneration") == generation for each in conditions)

    await eventually(about_it, f"a condition of {made['kind']} {name}", seconds=60)
