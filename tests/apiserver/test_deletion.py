"""Deleting a job takes everything of it along, also in the operator's memory."""

import asyncio

from rollcall_operator.kube.resources import PODS, RL_JOBS
from tests.apiserver.cluster_user import (
    COLLECTION,
    ClusterUser,
    all_children,
    eventually,
    example,
)
from tests.apiserver.operator_process import OperatorProcess


async def test_deletion_leaks_nothing(user: ClusterUser, operator: OperatorProcess) -> None:
    await user.apply(example())
    await all_children(user)
    series = f'namespace="{user.namespace}"'

    async def counted() -> bool:
        return any("rollcall_jobs" in name for name in operator.metrics())

    await eventually(counted, "the job in the metrics")
    await user.delete(RL_JOBS, "reverse")

    async def empty() -> bool:
        pods = await user.listed(PODS, "rollcall.dev/job=reverse")
        return not await user.children("reverse") and not pods

    await eventually(empty, "nothing left", seconds=COLLECTION)

    async def forgotten() -> bool:
        return not any(series in name for name in operator.metrics())

    await eventually(forgotten, "no series of the job")
    await asyncio.sleep(1.0)
    assert not await user.children("reverse")  # and no child is recreated


async def test_a_job_of_the_same_name_starts_afresh(
    user: ClusterUser, operator: OperatorProcess
) -> None:
    await user.apply(example())
    first = await all_children(user)
    await user.delete(RL_JOBS, "reverse")
    await user.apply(example())

    async def renewed() -> bool:
        uid = (await user.get(RL_JOBS, "reverse"))["metadata"]["uid"]
        children = await user.children("reverse")
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
