"""What others do to a job's objects: the job converges, or a condition says why it does not."""

import pytest

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICES,
)
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    ClusterUser,
    all_children,
    eventually,
    example,
    writes_settled,
)

pytestmark = pytest.mark.usefixtures("operator")

CERTIFICATE = "reverse-trainer-tls"


async def why_invalid(user: ClusterUser, job: str) -> str:
    """Wait until the job's spec is reported as wrong; returns the message."""

    async def invalid() -> str | None:
        found = await user.condition(RL_JOBS, job, "Validated")
        return found["message"] if found and found["status"] == "False" else None

    return await eventually(invalid, f"Validated=False of {job}")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"rollcall.dev/job": "reverse"}, "exists and is owned by ConfigMap another; delete it"),
        ({}, "Service reverse-trainer exists and is no child of this RLJob; delete it"),
    ],
    ids=["with the job's label", "without it"],
)
async def test_an_object_with_another_owner_is_left_alone_until_it_goes(
    user: ClusterUser, labels: dict[str, str], says: str
) -> None:
    owner = await user.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "another"}}
    )
    reference = {key: owner["metadata"][key] for key in ("name", "uid")}
    taken = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "reverse-trainer",
            "labels": labels,
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", **reference}],
        },
        "spec": {"ports": [{"port": 1, "name": "mine"}], "publishNotReadyAddresses": False},
    }
    before = await user.apply(taken)
    await user.apply(example())
    message = await why_invalid(user, "reverse")
    assert says in message
    assert "reverse-trainer" in message
    live = await user.get(SERVICES, "reverse-trainer")
    assert live["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await user.delete(CONFIG_MAPS, "another")
    await user.delete(SERVICES, "reverse-trainer")
    await all_children(user)


@pytest.mark.slow
async def test_of_two_jobs_with_a_pool_of_one_name_the_first_has_it(user: ClusterUser) -> None:
    first, second = example("a"), example("a-b")
    first["spec"]["rollouts"][0]["name"] = "b-cpu"
    await user.apply(first)
    await all_children(user, "a")
    owned = await user.get(ROLLOUT_POOLS, "a-b-cpu")
    await user.apply(second)
    assert "spec.rollouts[0].name: RolloutPool a-b-cpu serves another" in await why_invalid(
        user, "a-b"
    )
    kept = await user.get(ROLLOUT_POOLS, "a-b-cpu")
    assert kept["spec"] == owned["spec"]
    await user.delete(RL_JOBS, "a")
    await all_children(user, "a-b")


@pytest.mark.slow
async def test_a_certificate_that_is_deleted_is_made_again_for_the_pod_that_waits(
    user: ClusterUser,
) -> None:
    await user.apply(example())
    await all_children(user)

    async def there() -> Object | None:
        return await user.find(PODS, "reverse-trainer-0")

    await eventually(there, "the trainer's pod")
    deleted = await user.get(SECRETS, CERTIFICATE)
    await user.delete(SECRETS, CERTIFICATE)
    await user.bind("reverse-trainer-0")

    async def made_again() -> bool:
        found = await user.find(SECRETS, CERTIFICATE)
        return found is not None and found["metadata"]["uid"] != deleted["metadata"]["uid"]

    await eventually(made_again, "the Secret again", seconds=40)


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Failed", "completionTime": None, "rollouts": "9/9"},
        {"phase": None, "conditions": None, "observedGeneration": None, "pools": None},
        {"conditions": [], "epoch": 0, "trainer": None},
    ],
    ids=["another phase", "taken away", "without conditions"],
)
async def test_a_status_that_another_wrote_is_put_right(
    user: ClusterUser, cluster: Cluster, status: Object
) -> None:
    await user.apply(example())
    await all_children(user)
    await writes_settled(user, cluster)
    before = (await user.get(RL_JOBS, "reverse"))["status"]
    job = await user.get(RL_JOBS, "reverse")
    await user.client.patch_status(
        RL_JOBS,
        namespace=user.namespace,
        name="reverse",
        patch=status,
        resource_version=job["metadata"]["resourceVersion"],
    )

    async def as_before() -> bool:
        now = (await user.get(RL_JOBS, "reverse")).get("status") or {}
        reasons = [{c["type"]: c["reason"] for c in s.get("conditions", ())} for s in (before, now)]
        same = all(before.get(key) == now.get(key) for key in ("phase", "epoch", "rollouts"))
        return same and reasons[0] == reasons[1]

    await eventually(as_before, "the status as it was", seconds=40)
    await writes_settled(user, cluster)
