"""A job gets its children, quickly and once; with nothing to do nothing is written."""

import asyncio
import base64
import copy
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    RL_JOBS,
    ROLLOUT_POOLS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from tests.apiserver.access_review import Access, is_allowed
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import (
    USER,
    ClusterUser,
    all_children,
    eventually,
    example,
    writes_settled,
)
from tests.apiserver.operator_process import OperatorProcess

TRUST = "ConfigMap/reverse-rollcall-trust"
SECRETS = Resource("v1", "Secret", "secrets")

pytestmark = pytest.mark.usefixtures("operator")


def owners(body: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [
        (owner["kind"], owner["name"], owner["blockOwnerDeletion"])
        for owner in body["metadata"]["ownerReferences"]
    ]


async def reconciled_again(
    user: ClusterUser, operator: OperatorProcess, job: str = "reverse"
) -> None:
    """Have the operator look at a job once more, without changing what it should do."""
    before = operator.reconciles()
    await user.edit(RL_JOBS, job, {"metadata": {"annotations": {"look": str(time.time())}}})

    async def done() -> bool:
        return operator.reconciles() > before

    await eventually(done, "another reconcile")


@pytest.mark.alone
async def test_all_children_are_there_within_a_second_of_the_apply(
    user: ClusterUser, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    job = await user.apply(example())
    children = await all_children(user)
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(f"\napply to all children created: {seconds:.3f} s")
    assert seconds < 1.0
    assert set(children) == {
        TRUST,
        "NetworkPolicy/reverse-trainer",
        "NetworkPolicy/reverse-rollouts",
        "Service/reverse-trainer",
        "StatefulSet/reverse-trainer",
        "RolloutPool/reverse-cpu",
        "Deployment/reverse-cpu",
    }
    for name, child in children.items():
        owner = "RolloutPool" if name.startswith("Deployment") else "RLJob"
        assert [(kind, block) for kind, _, block in owners(child)] == [(owner, True)]
        assert "finalizers" not in child["metadata"]
    assert "finalizers" not in (await user.get(RL_JOBS, "reverse"))["metadata"]
    assert owners(children["StatefulSet/reverse-trainer"])[0][1] == job["metadata"]["name"]


async def test_workers_get_the_clusters_public_keys_and_again_when_they_are_deleted(
    user: ClusterUser, operator: OperatorProcess
) -> None:
    await user.apply(example())
    made = (await all_children(user))[TRUST]
    trust = json.loads(made["data"]["trust.json"])
    keys = json.loads(user.kubectl("get", "--raw", "/openid/v1/jwks"))["keys"]
    assert trust["keys"] == sorted(keys, key=lambda key: str(key["kid"]))
    assert trust["operator"] == USER
    made_for = {"namespace": user.namespace, "account": "default"}
    claims = claims_of((await user.client.create_token(**made_for, spec={}))["token"])
    assert trust["issuer"] == claims["iss"]
    await user.delete(CONFIG_MAPS, made["metadata"]["name"])
    await reconciled_again(user, operator)

    async def made_again() -> bool:
        found = (await user.children("reverse")).get(TRUST)
        return found is not None and found["data"] == made["data"]

    await eventually(made_again, "the ConfigMap as it was")


def claims_of(token: str) -> dict[str, Any]:
    """What a token says, unchecked."""
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


@pytest.mark.kubernetes("RBAC")
async def test_a_jobs_only_secret_is_the_coordinators_certificate_which_the_operator_may_not_read(
    user: ClusterUser,
) -> None:
    await user.apply(example())
    await all_children(user)
    (made,) = await user.listed(SECRETS)
    assert (made["metadata"]["name"], made["type"]) == ("reverse-trainer-tls", "kubernetes.io/tls")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("RLJob", "reverse")
    allowed = {
        verb
        for verb in ("get", "list", "watch", "create", "patch", "update", "delete")
        if await is_allowed(user, Access(verb, "secrets"))
    }
    assert allowed == {"create"}


async def test_a_start_takes_few_writes_and_a_second_look_none(
    user: ClusterUser, cluster: Cluster, operator: OperatorProcess
) -> None:
    await user.apply(example())
    await all_children(user)
    writes = await writes_settled(user, cluster)
    # Seven children, one status of the job, one of the pool. Until Running there may be fourteen.
    assert len(writes) <= 10, writes
    generations = {
        name: child["metadata"].get("generation")
        for name, child in (await user.children("reverse")).items()
    }
    for _ in range(3):
        await reconciled_again(user, operator)
    assert await writes_settled(user, cluster) == writes
    assert generations == {
        name: child["metadata"].get("generation")
        for name, child in (await user.children("reverse")).items()
    }


async def test_a_manual_change_of_a_child_is_reverted(user: ClusterUser) -> None:
    await user.apply(example())
    await all_children(user)
    await user.edit(STATEFUL_SETS, "reverse-trainer", {"spec": {"replicas": 0}})

    async def restored() -> bool:
        found = await user.get(STATEFUL_SETS, "reverse-trainer")
        return bool(found["spec"]["replicas"] == 1)

    await eventually(restored, "one trainer again")


async def test_network_policies_are_repaired_at_once_and_follow_their_field(
    user: ClusterUser, cluster: Cluster, operator: OperatorProcess
) -> None:
    hub = {"to": [{"podSelector": {"matchLabels": {}}}], "ports": [{"port": "https"}]}
    await user.apply(example())
    await all_children(user)
    await user.edit(RL_JOBS, "reverse", {"spec": {"networkPolicy": {"egress": [hub]}}})
    names = {f"reverse-{name}" for name in ("trainer", "rollouts", "egress")}

    async def are_there() -> Sequence[dict[str, Any]] | None:
        made = await user.listed(NETWORK_POLICIES)
        return made if {policy["metadata"]["name"] for policy in made} == names else None

    made = await eventually(are_there, "three NetworkPolicies")
    writes = await writes_settled(user, cluster)
    await reconciled_again(user, operator)
    assert await writes_settled(user, cluster) == writes, (
        "what the API server fills in is no difference"
    )
    trainer = next(p for p in made if p["metadata"]["name"] == "reverse-trainer")
    await user.edit(NETWORK_POLICIES, "reverse-trainer", {"spec": {"ingress": [{}]}})
    await user.delete(NETWORK_POLICIES, "reverse-rollouts")

    async def repaired() -> bool:
        rollouts = await user.find(NETWORK_POLICIES, "reverse-rollouts")
        found = await user.get(NETWORK_POLICIES, "reverse-trainer")
        return rollouts is not None and bool(found["spec"] == trainer["spec"])

    await eventually(repaired, "both policies as they were")
    await user.edit(RL_JOBS, "reverse", {"spec": {"networkPolicy": {"enabled": False}}})

    async def are_gone() -> bool:
        return not await user.listed(NETWORK_POLICIES)

    await eventually(are_gone, "no NetworkPolicy")


async def test_a_child_that_is_deleted_comes_back(
    user: ClusterUser, operator: OperatorProcess
) -> None:
    await user.apply(example())
    before = await all_children(user)
    await user.delete(DEPLOYMENTS, "reverse-cpu")
    await user.delete(SERVICES, "reverse-trainer")

    async def back() -> bool:
        found = await user.get(DEPLOYMENTS, "reverse-cpu")
        uid = before["Deployment/reverse-cpu"]["metadata"]["uid"]
        return bool(found["metadata"]["uid"] != uid)

    await eventually(back, "another Deployment")
    await reconciled_again(user, operator)
    await all_children(user)


async def test_fields_of_others_are_left_alone(
    user: ClusterUser, operator: OperatorProcess
) -> None:
    await user.apply(example())
    await all_children(user)
    patch = {"metadata": {"annotations": {"team": "a"}, "labels": {"cost": "b"}}}
    await user.edit(DEPLOYMENTS, "reverse-cpu", patch)
    await reconciled_again(user, operator)
    metadata = (await user.get(DEPLOYMENTS, "reverse-cpu"))["metadata"]
    assert metadata["annotations"]["team"] == "a"
    assert metadata["labels"]["cost"] == "b"


async def test_suspending_scales_to_nothing_and_resuming_brings_all_back(user: ClusterUser) -> None:
    await user.apply(example())
    await all_children(user)

    async def sizes() -> tuple[int, int, str]:
        trainer = await user.get(STATEFUL_SETS, "reverse-trainer")
        rollouts = await user.get(DEPLOYMENTS, "reverse-cpu")
        phase = (await user.get(RL_JOBS, "reverse")).get("status", {}).get("phase", "")
        return trainer["spec"]["replicas"], rollouts["spec"]["replicas"], phase

    async def are(*wanted: object) -> bool:
        return await sizes() == wanted

    await user.edit(RL_JOBS, "reverse", {"spec": {"suspend": True}})
    await eventually(lambda: are(0, 0, "Suspended"), "suspended")
    assert (await user.get(ROLLOUT_POOLS, "reverse-cpu"))["spec"]["replicas"] == 2
    await user.edit(RL_JOBS, "reverse", {"spec": {"suspend": False}})
    await eventually(lambda: are(1, 2, "Starting"), "resumed")


@pytest.mark.slow
async def test_twenty_jobs_at_once(user: ClusterUser, operator: OperatorProcess) -> None:
    names = [f"job-{number}" for number in range(20)]
    began = time.monotonic()
    await asyncio.gather(*(user.apply(example(name)) for name in names))
    await asyncio.gather(*(all_children(user, name) for name in names))
    assert time.monotonic() - began < 20.0
    assert operator.fetch("/healthz")[0] == 200


async def test_the_references_own_pods_come_and_go_with_their_template(user: ClusterUser) -> None:
    job = example()
    job["spec"]["algorithm"]["settings"] = {"klCoefficient": "0.1"}
    template = copy.deepcopy(job["spec"]["trainer"]["template"])
    template["spec"]["containers"][0]["name"] = "reference"
    own = {"Service/reverse-reference", "Deployment/reverse-reference"}

    async def are_there() -> bool:
        return own <= set(await user.children("reverse"))

    async def are_gone() -> bool:
        left = set(await user.children("reverse"))
        return not own & left and "StatefulSet/reverse-trainer" in left

    await user.apply(job | {"spec": job["spec"] | {"reference": {"template": template}}})
    await eventually(are_there, "the reference's Deployment and Service")
    await user.edit(RL_JOBS, "reverse", {"spec": {"suspend": True}})
    await user.edit(RL_JOBS, "reverse", {"spec": {"reference": {"template": None}}})
    await eventually(are_gone, "the trainer has the reference again")
