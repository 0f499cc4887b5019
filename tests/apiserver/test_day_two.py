"""What operating a job by hand meets: quotas, restarts, orphans, a restore from a backup."""

import copy
from typing import Any

import pytest

from rollcall_operator.api import labels
from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
)
from tests.apiserver.cluster_user import (
    ACCOUNT,
    COLLECTION,
    QUOTAS,
    SYSTEM,
    ClusterUser,
    all_children,
    eventually,
    example,
)
from tests.apiserver.kubelet import kubelet, rollouts

pytestmark = pytest.mark.slow

TRAINER = "reverse-trainer-0"
_SET_BY_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")


async def says(user: ClusterUser, condition: str, reason: str, *, seconds: float = 30.0) -> str:
    """The message of a condition of the job, once it has this reason."""

    async def there() -> str | None:
        found = await user.condition(RL_JOBS, "reverse", condition)
        return found["message"] if found and found["reason"] == reason else None

    return await eventually(there, f"{condition}: {reason}", seconds=seconds)


def owners(manifest: Object) -> list[str]:
    return [owner["uid"] for owner in manifest["metadata"].get("ownerReferences") or ()]


async def delete_and_wait(user: ClusterUser) -> None:
    """Delete the job (it is made if there is none) and wait for the garbage collector."""
    await user.apply(example(replicas=1))
    await all_children(user)
    await user.delete(RL_JOBS, "reverse")

    async def empty() -> bool:
        return not await user.children("reverse")

    await eventually(empty, "nothing left", seconds=COLLECTION)


def quota(pods: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": str(pods)}},
    }


@pytest.mark.kubernetes("quotas")
@pytest.mark.usefixtures("direct_operator")
async def test_a_quota_that_refuses_pods_is_a_condition_until_it_is_raised(
    user: ClusterUser,
) -> None:
    await user.apply(quota(0))

    async def counted() -> bool:
        found = await user.get(QUOTAS, "small")
        return "used" in (found.get("status") or {})

    await eventually(counted, "the quota in force")
    await user.apply(example())
    rollouts_say = await says(user, "RolloutsReady", "PodsRefused")
    assert rollouts_say.startswith(
        "spec.rollouts[0].template: the API server refuses pods of Deployment/reverse-cpu: exceeded"
        " quota: small"
    )
    assert "raise the ResourceQuota of the namespace" in rollouts_say
    trainer_says = await says(user, "TrainerReady", "PodsRefused")
    assert trainer_says.startswith(
        "spec.trainer.template: the API server refuses pods of StatefulSet/reverse-trainer: "
        "exceeded quota: small"
    )
    await user.apply(quota(10))
    await says(user, "RolloutsReady", "Starting", seconds=60)


@pytest.mark.usefixtures("direct_operator")
async def test_a_changed_trainer_waits_for_the_annotation_that_restarts_it(
    user: ClusterUser,
) -> None:
    async with kubelet(user):
        await user.apply(example())
        await rollouts(user, 2)
        before = (await user.get(PODS, TRAINER))["metadata"]["uid"]
        changed = example()
        changed["spec"]["trainer"]["template"]["spec"]["containers"][0]["image"] = "worker:next"
        await user.apply(changed)
        message = await says(user, "TrainerUpToDate", "RestartNeeded")
        assert (await user.get(PODS, TRAINER))["metadata"]["uid"] == before, "it was left alone"
        command = message[message.index("kubectl annotate") : message.index(" restarts them")]
        assert "rollcall.dev/restart-trainer" in command
        user.kubectl("annotate", "rljob", "reverse", "rollcall.dev/restart-trainer=now")

        async def replaced() -> bool:
            pod = await user.get(PODS, TRAINER)
            image = pod["spec"]["containers"][0]["image"]
            return bool(pod["metadata"]["uid"] != before and image == "worker:next")

        await eventually(replaced, "a trainer pod with the new image")
        await says(user, "TrainerUpToDate", "UpToDate")
        second = (await user.get(PODS, TRAINER))["metadata"]["uid"]
        user.kubectl("rollout", "restart", "statefulset/reverse-trainer")

        async def again() -> bool:
            return (await user.get(PODS, TRAINER))["metadata"]["uid"] not in {before, second}

        await eventually(again, "kubectl rollout restart replaced it")


@pytest.mark.kubernetes("deletions that leave what the object owns")
@pytest.mark.usefixtures("direct_operator")
async def test_orphaned_children_are_adopted_when_an_annotation_says_so(user: ClusterUser) -> None:
    await allow_deletion_to_the_operator(user)
    await delete_and_wait(user)  # a collector that knows no RolloutPool would orphan none
    await user.apply(example(replicas=1))
    first = await all_children(user)
    user.kubectl("delete", "rljob", "reverse", "--cascade=orphan")

    async def orphaned() -> bool:
        pool = await user.get(ROLLOUT_POOLS, "reverse-cpu")
        return not owners(pool)

    await eventually(orphaned, "the pool without an owner", seconds=COLLECTION)
    await user.apply(example(replicas=1))
    message = await says(user, "Validated", "InvalidSpec")
    assert "rollcall.dev/adopt-children=true" in message
    former = (await user.get(PODS, TRAINER))["metadata"]["uid"]
    user.kubectl("annotate", "rljob", "reverse", "rollcall.dev/adopt-children=true")
    uid = (await user.get(RL_JOBS, "reverse"))["metadata"]["uid"]

    async def adopted() -> bool:
        pod, children = await user.get(PODS, TRAINER), await user.children("reverse")
        kept = all(
            children[name]["metadata"]["uid"] == first[name]["metadata"]["uid"]
            and owners(children[name]) == [uid]
            for name in ("StatefulSet/reverse-trainer", "RolloutPool/reverse-cpu")
        )
        made_for = pod["metadata"]["annotations"][labels.JOB_UID]
        return kept and pod["metadata"]["uid"] != former and made_for == uid

    await eventually(adopted, "the children of the second job")


@pytest.mark.usefixtures("direct_operator")
async def test_objects_of_others_that_have_the_names_of_children_stay_as_they_are(
    user: ClusterUser,
) -> None:
    """Server-side apply would merge with what has no other value where the operator sets one."""
    selected = {"rollcall.dev/job": "reverse", "rollcall.dev/role": "trainer"}
    pods = {"containers": [{"name": "theirs", "image": "theirs"}]}
    others: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "reverse-rollcall-trust"},
            "data": {"theirs": "1"},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "reverse-trainer"},
            "spec": {
                "serviceName": "reverse-trainer",
                "podManagementPolicy": "Parallel",
                "replicas": 1,
                "updateStrategy": {"type": "OnDelete"},
                "revisionHistoryLimit": 2,
                "selector": {"matchLabels": selected},
                "template": {"metadata": {"labels": selected}, "spec": pods},
            },
        },
    ]
    await allow_deletion_to_the_operator(user)
    for body in others:
        user.kubectl("create", "-f", "-", body=body)
    kinds = {"ConfigMap": CONFIG_MAPS, "StatefulSet": STATEFUL_SETS}
    named = [(kinds[body["kind"]], body["metadata"]["name"]) for body in others]
    before = [await user.get(*each) for each in named]
    await user.apply(example(replicas=1))

    async def refused() -> bool:
        found = await user.condition(RL_JOBS, "reverse", "Validated")
        return found is not None and "exists and is no child of this RLJob" in found["message"]

    await eventually(refused, "the objects are named")
    for (kind, name), body in zip(named, before, strict=True):
        now = await user.get(kind, name)
        for found in (now, body):  # a controller may have written its status
            found.pop("status", None)
            for field in ("resourceVersion", "managedFields"):
                found["metadata"].pop(field)
        assert now == body


async def allow_deletion_to_the_operator(user: ClusterUser) -> None:
    """What OwnerReferencesPermissionEnforcement asks of who gives an object another owner."""
    rbac = "rbac.authorization.k8s.io"
    named = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "adopter"}}
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["delete"]},
    ]
    await user.apply(named | {"kind": "Role", "rules": rules})
    role = {"apiGroup": rbac, "kind": "Role", "name": "adopter"}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}
    await user.apply(named | {"kind": "RoleBinding", "roleRef": role, "subjects": [subject]})


@pytest.mark.usefixtures("direct_operator")
async def test_a_restore_from_a_backup_of_the_objects_ends_in_a_running_job(
    user: ClusterUser,
) -> None:
    """As backup tools do: all objects again, with the owners of then, the job last."""
    await user.apply(example(replicas=1))
    saved = [await user.get(RL_JOBS, "reverse"), *(await all_children(user)).values()]
    await delete_and_wait(user)
    for item in reversed(saved):
        body = copy.deepcopy(item)
        body.pop("status", None)
        for name in _SET_BY_THE_SERVER:
            body["metadata"].pop(name, None)
        user.kubectl("create", "-f", "-", body=body)
    async with kubelet(user):

        async def running() -> bool:
            found = await user.condition(RL_JOBS, "reverse", "Running")
            return found is not None and found["status"] == "True"

        await eventually(running, "the restored job runs", seconds=2 * COLLECTION)
        uid = (await user.get(RL_JOBS, "reverse"))["metadata"]["uid"]
        pool = await user.get(ROLLOUT_POOLS, "reverse-cpu")
        assert owners(pool) == [uid]
