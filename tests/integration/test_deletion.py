"""Deleting a job takes everything of it along, also in the operator's memory."""

import asyncio

from rollcall_operator.kube.resources import PODS, RL_JOBS
from tests.integration.operator_process import OperatorProcess
from tests.integration.world import COLLECTION, World, all_children, eventually, example


async def test_deletion_leaks_nothing(world: World, operator: OperatorProcess) -> None:
    await world.apply(example())
    await all_children(world)
    series = f'namespace="{world.namespace}"'

    async def counted() -> bool:
        return any("rollcall_jobs" in name for name in operator.metrics())

    await eventually(counted, "the job in the metrics")
    await world.delete(RL_JOBS, "reverse")

    async def empty() -> bool:
        pods = await world.listed(PODS, "rollcall.dev/job=reverse")
        return not await world.children("reverse") and not pods

    await eventually(empty, "nothing left", seconds=COLLECTION)

    async def forgotten() -> bool:
        return not any(series in name for name in operator.metrics())

    await eventually(forgotten, "no series of the job")
    await asyncio.sleep(1.0)
    assert not await world.children("reverse")  # and nothing is made anew


async def test_a_job_of_the_same_name_starts_afresh(
    world: World, operator: OperatorProcess
) -> None:
    await world.apply(example())
    first = await all_children(world)
    await world.delete(RL_JOBS, "reverse")
    await world.apply(example())

    async def renewed() -> bool:
        uid = (await world.get(RL_JOBS, "reverse"))["metadata"]["uid"]
        children = await world.children("reverse")
        if len(children) < len(first):
            return False
        return all(
            child["metadata"]["uid"] != first[name]["metadata"]["uid"]
            for name, child in children.items()
        ) and all(
            children[name]["metadata"]["ownerReferences"][0]["uid"] == uid
            for name in children
            if not name.startswith("Deployment")
        )

    await eventually(renewed, "children of the second job", seconds=COLLECTION)
    old = first["Secret/reverse-token"]["data"]
    assert (await world.children("reverse"))["Secret/reverse-token"]["data"] != old
