"""Pools: who decides their number, lent pools, pools that are taken away."""

import pytest

from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import DEPLOYMENTS, RL_JOBS, ROLLOUT_POOLS, STATEFUL_SETS
from tests.apiserver.cluster_user import (
    COLLECTION,
    ClusterUser,
    all_children,
    eventually,
    example,
    extra_pool,
)
from tests.apiserver.operator_process import OperatorProcess
from tests.apiserver.test_children import reconciled_again

pytestmark = pytest.mark.usefixtures("operator")


async def replicas(user: ClusterUser, name: str) -> tuple[int, int]:
    """Of the pool and of its Deployment."""
    pool = await user.get(ROLLOUT_POOLS, name)
    deployment = await user.get(DEPLOYMENTS, name)
    return pool["spec"]["replicas"], deployment["spec"]["replicas"]


async def become(user: ClusterUser, name: str, count: int) -> None:
    async def there() -> bool:
        return await replicas(user, name) == (count, count)

    await eventually(there, f"{count} replicas of {name}")


async def test_kubectl_scale_reaches_the_deployment_and_stays(
    user: ClusterUser, operator: OperatorProcess
) -> None:
    await user.apply(example())
    await all_children(user)
    user.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=4")
    await become(user, "reverse-cpu", 4)
    for _ in range(2):
        await reconciled_again(user, operator)
    # Another field of the pool is the job's still, and changes without touching the number.
    job = await user.get(RL_JOBS, "reverse")
    rollouts = job["spec"]["rollouts"]
    rollouts[0]["drain"] = {"timeoutSeconds": 77}
    await user.edit(RL_JOBS, "reverse", {"spec": {"rollouts": rollouts}})

    async def taken() -> bool:
        pool = await user.get(ROLLOUT_POOLS, "reverse-cpu")
        return bool(pool["spec"]["drain"]["timeoutSeconds"] == 77)

    await eventually(taken, "the new drain time")
    assert await replicas(user, "reverse-cpu") == (4, 4)


async def test_the_jobs_own_number_wins_when_it_changes(user: ClusterUser) -> None:
    await user.apply(example())
    await all_children(user)
    user.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=4")
    await become(user, "reverse-cpu", 4)
    await user.apply(example(replicas=3))
    await become(user, "reverse-cpu", 3)


async def test_the_scale_subresource_shows_what_an_autoscaler_needs(user: ClusterUser) -> None:
    await user.apply(example())
    await all_children(user)

    async def selector() -> bool:
        pool = await user.get(ROLLOUT_POOLS, "reverse-cpu")
        return "rollcall.dev/pool=reverse-cpu" in pool.get("status", {}).get("selector", "")

    await eventually(selector, "a selector in the status")


async def test_a_pool_applied_by_itself_joins_and_leaves(user: ClusterUser) -> None:
    await user.apply(example())
    await all_children(user)
    await user.apply(extra_pool("reverse", replicas=2))

    async def joined() -> bool:
        deployment = await user.get(DEPLOYMENTS, "lent")
        found = await user.condition(ROLLOUT_POOLS, "lent", "JobFound")
        return deployment["spec"]["replicas"] == 2 and (found or {}).get("status") == "True"

    await eventually(joined, "the lent pool's Deployment and condition")
    generation = (await user.get(RL_JOBS, "reverse"))["metadata"]["generation"]
    trainer = await user.get(STATEFUL_SETS, "reverse-trainer")
    await user.delete(ROLLOUT_POOLS, "lent")

    async def left() -> bool:
        return await user.find(DEPLOYMENTS, "lent") is None

    await eventually(left, "no Deployment of the lent pool", seconds=COLLECTION)
    assert (await user.get(RL_JOBS, "reverse"))["metadata"]["generation"] == generation
    after = await user.get(STATEFUL_SETS, "reverse-trainer")
    assert after["metadata"]["generation"] == trainer["metadata"]["generation"]


async def test_a_pool_waits_for_its_job_and_reports_it_when_it_exists(user: ClusterUser) -> None:
    await user.apply(extra_pool("later"))

    async def reported(status: str) -> bool:
        found = await user.condition(ROLLOUT_POOLS, "lent", "JobFound")
        return found is not None and found["status"] == status

    await eventually(lambda: reported("False"), "JobFound=False")
    await user.apply(example("later"))
    await eventually(lambda: reported("True"), "JobFound=True")

    async def deployed() -> bool:
        return (await user.find(DEPLOYMENTS, "lent")) is not None

    await eventually(deployed, "the pool's Deployment")


async def test_a_pool_taken_out_of_the_job_is_deleted(user: ClusterUser) -> None:
    job = example()
    second = {**job["spec"]["rollouts"][0], "name": "more", "replicas": 1}
    job["spec"]["rollouts"].append(second)
    await user.apply(job)
    await all_children(user, pools=2)
    job["spec"]["rollouts"].pop()
    await user.apply(job)

    async def gone() -> bool:
        pool = await user.find(ROLLOUT_POOLS, "reverse-more")
        return pool is None and await user.find(DEPLOYMENTS, "reverse-more") is None

    await eventually(gone, "no pool, no Deployment", seconds=COLLECTION)
    await all_children(user, pools=1)


async def test_scaling_beyond_the_pools_own_bounds_is_refused_by_the_api_server(
    user: ClusterUser,
) -> None:
    job = example()
    job["spec"]["rollouts"][0]["maxReplicas"] = 3
    await user.apply(job)
    await all_children(user)
    with pytest.raises(RefusedError, match="must not be above maxReplicas"):
        await user.edit(ROLLOUT_POOLS, "reverse-cpu", {"spec": {"replicas": 4}})
