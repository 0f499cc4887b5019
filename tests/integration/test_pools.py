"""Pools: who decides their number, lent pools, pools that are taken away."""

import pytest

from rollcall_operator.kube.errors import RefusedError
from rollcall_operator.kube.resources import DEPLOYMENTS, RL_JOBS, ROLLOUT_POOLS, STATEFUL_SETS
from tests.integration.operator_process import OperatorProcess
from tests.integration.test_children import reconciled_again
from tests.integration.world import COLLECTION, World, all_children, eventually, example, extra_pool

pytestmark = pytest.mark.usefixtures("operator")


async def replicas(world: World, name: str) -> tuple[int, int]:
    """Of the pool and of its Deployment."""
    pool = await world.get(ROLLOUT_POOLS, name)
    deployment = await world.get(DEPLOYMENTS, name)
    return pool["spec"]["replicas"], deployment["spec"]["replicas"]


async def become(world: World, name: str, count: int) -> None:
    async def there() -> bool:
        return await replicas(world, name) == (count, count)

    await eventually(there, f"{count} replicas of {name}")


async def test_kubectl_scale_reaches_the_deployment_and_stays(
    world: World, operator: OperatorProcess
) -> None:
    await world.apply(example())
    await all_children(world)
    world.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=4")
    await become(world, "reverse-cpu", 4)
    for _ in range(2):
        await reconciled_again(world, operator)
    # Another field of the pool is the job's still, and changes without touching the number.
    job = await world.get(RL_JOBS, "reverse")
    rollouts = job["spec"]["rollouts"]
    rollouts[0]["drain"] = {"timeoutSeconds": 77}
    await world.edit(RL_JOBS, "reverse", {"spec": {"rollouts": rollouts}})

    async def taken() -> bool:
        pool = await world.get(ROLLOUT_POOLS, "reverse-cpu")
        return bool(pool["spec"]["drain"]["timeoutSeconds"] == 77)

    await eventually(taken, "the new drain time")
    assert await replicas(world, "reverse-cpu") == (4, 4)


async def test_the_jobs_own_number_wins_when_it_changes(world: World) -> None:
    await world.apply(example())
    await all_children(world)
    world.kubectl("scale", "rolloutpool/reverse-cpu", "--replicas=4")
    await become(world, "reverse-cpu", 4)
    await world.apply(example(replicas=3))
    await become(world, "reverse-cpu", 3)


async def test_the_scale_subresource_shows_what_an_autoscaler_needs(world: World) -> None:
    await world.apply(example())
    await all_children(world)

    async def selector() -> bool:
        pool = await world.get(ROLLOUT_POOLS, "reverse-cpu")
        return "rollcall.dev/pool=reverse-cpu" in pool.get("status", {}).get("selector", "")

    await eventually(selector, "a selector in the status")


async def test_a_pool_applied_by_itself_joins_and_leaves(world: World) -> None:
    await world.apply(example())
    await all_children(world)
    await world.apply(extra_pool("reverse", replicas=2))

    async def joined() -> bool:
        deployment = await world.get(DEPLOYMENTS, "lent")
        found = await world.condition(ROLLOUT_POOLS, "lent", "JobFound")
        return deployment["spec"]["replicas"] == 2 and (found or {}).get("status") == "True"

    await eventually(joined, "the lent pool's Deployment and condition")
    generation = (await world.get(RL_JOBS, "reverse"))["metadata"]["generation"]
    trainer = await world.get(STATEFUL_SETS, "reverse-trainer")
    await world.delete(ROLLOUT_POOLS, "lent")

    async def left() -> bool:
        return await world.find(DEPLOYMENTS, "lent") is None

    await eventually(left, "no Deployment of the lent pool", seconds=COLLECTION)
    assert (await world.get(RL_JOBS, "reverse"))["metadata"]["generation"] == generation
    after = await world.get(STATEFUL_SETS, "reverse-trainer")
    assert after["metadata"]["generation"] == trainer["metadata"]["generation"]


async def test_a_pool_waits_for_its_job_and_is_told_when_it_comes(world: World) -> None:
    await world.apply(extra_pool("later"))

    async def told(status: str) -> bool:
        found = await world.condition(ROLLOUT_POOLS, "lent", "JobFound")
        return found is not None and found["status"] == status

    await eventually(lambda: told("False"), "JobFound=False")
    await world.apply(example("later"))
    await eventually(lambda: told("True"), "JobFound=True")

    async def deployed() -> bool:
        return (await world.find(DEPLOYMENTS, "lent")) is not None

    await eventually(deployed, "the pool's Deployment")


async def test_a_pool_taken_out_of_the_job_is_deleted(world: World) -> None:
    job = example()
    second = {**job["spec"]["rollouts"][0], "name": "more", "replicas": 1}
    job["spec"]["rollouts"].append(second)
    await world.apply(job)
    await all_children(world, pools=2)
    job["spec"]["rollouts"].pop()
    await world.apply(job)

    async def gone() -> bool:
        pool = await world.find(ROLLOUT_POOLS, "reverse-more")
        return pool is None and await world.find(DEPLOYMENTS, "reverse-more") is None

    await eventually(gone, "no pool, no Deployment", seconds=COLLECTION)
    await all_children(world, pools=1)


async def test_scaling_beyond_the_pools_own_bounds_is_refused_by_the_api_server(
    world: World,
) -> None:
    job = example()
    job["spec"]["rollouts"][0]["maxReplicas"] = 3
    await world.apply(job)
    await all_children(world)
    with pytest.raises(RefusedError, match="must not be above maxReplicas"):
        await world.edit(ROLLOUT_POOLS, "reverse-cpu", {"spec": {"replicas": 4}})
