"""What people change of a running job; `message` of each answer says what happens next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_cli.job_record import get_job
from rollcall_operator.api.conditions import JobPhase
from rollcall_operator.api.labels import JOB, POOL, ROLE, ROLLOUT
from rollcall_operator.kube.errors import NotFoundError
from rollcall_operator.kube.resources import PODS, RL_JOBS, ROLLOUT_POOLS

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient, Object


Change = dict[str, Any]


class NoSuchObjectError(Exception):
    """The pod or pool is not there, or is not of the kind; the message says how to list them."""


class FinishedJobError(Exception):
    """The job is over: the change would have no effect. The message says its state."""


async def set_suspended(
    client: KubeClient, *, namespace: str, name: str, suspended: bool
) -> Change:
    """Suspend or resume a job. NoSuchJobError, FinishedJobError, ApiError."""
    job = await get_job(client, namespace=namespace, name=name)
    _refuse_if_finished(job)
    changed = bool(job["spec"].get("suspend", False)) != suspended
    if changed:
        patch = {"spec": {"suspend": suspended}}
        await client.merge(RL_JOBS, namespace=namespace, name=name, patch=patch)
    return {
        "namespace": namespace,
        "job": name,
        "suspended": suspended,
        "changed": changed,
        "message": f"{name} is {_state(job, suspended, changed)}",
    }


def _state(job: Object, suspended: bool, changed: bool) -> str:
    if not changed:
        return f"{'suspended' if suspended else 'not suspended'} already"
    if not suspended:
        return "resumed: its trainer starts again from its last checkpoint, if it has any"
    kept = (
        "its last checkpoint is kept"
        if (job["spec"].get("trainer") or {}).get("checkpoint")
        else "without spec.trainer.checkpoint it will start again at step 0"
    )
    return f"suspended: its pods end; {kept}"


async def drain(client: KubeClient, *, namespace: str, pod: str) -> Change:
    """Delete a rollout's pod, which drains it.

    NoSuchObjectError if the pod is not there or is another one's; ApiError.
    """
    found = await client.find(PODS, namespace=namespace, name=pod)
    labels = _labels(found)
    if found is None or labels.get(ROLE) != ROLLOUT:
        raise NoSuchObjectError(_no_such_pod(pod, namespace, found, "rollout"))
    uid = found["metadata"]["uid"]
    await client.delete(PODS, namespace=namespace, name=pod, uid=uid)
    job, pool = labels.get(JOB), labels.get(POOL)
    return {
        "namespace": namespace,
        "pod": pod,
        "job": job,
        "pool": pool,
        "message": f"{pod} drains: job {job} gives its prompts to other rollouts, and pool {pool} "
        "starts another rollout in its place",
    }


async def kill(client: KubeClient, *, namespace: str, pod: str) -> Change:
    """Delete a pod of a job without any time to end. NoSuchObjectError, ApiError."""
    found = await client.find(PODS, namespace=namespace, name=pod)
    labels = _labels(found)
    if found is None or JOB not in labels:
        raise NoSuchObjectError(_no_such_pod(pod, namespace, found, "pod of a job"))
    uid = found["metadata"]["uid"]
    await client.delete(PODS, namespace=namespace, name=pod, uid=uid, grace=0)
    return {
        "namespace": namespace,
        "pod": pod,
        "job": labels[JOB],
        "role": labels.get(ROLE),
        "message": f"{pod} is killed; another {labels.get(ROLE)} takes its place",
    }


async def scale(client: KubeClient, *, namespace: str, pool: str, replicas: int) -> Change:
    """Set the number of rollouts of a RolloutPool.

    NoSuchObjectError, FinishedJobError, ApiError.
    """
    try:
        before = await client.get(ROLLOUT_POOLS, namespace=namespace, name=pool)
    except NotFoundError as error:
        raise NoSuchObjectError(
            f"there is no RolloutPool {pool!r} in namespace {namespace!r}; list them with: "
            "kubectl get rolloutpools"
        ) from error
    job = before["spec"]["jobRef"]["name"]
    _refuse_if_finished(await client.find(RL_JOBS, namespace=namespace, name=job) or {})
    patch = {"spec": {"replicas": replicas}}
    await client.merge(ROLLOUT_POOLS, namespace=namespace, name=pool, patch=patch)
    was = before["spec"].get("replicas", 1)
    return {
        "namespace": namespace,
        "pool": pool,
        "replicas": replicas,
        "message": f"{pool} has {replicas} rollouts in place of {was}; they come and go while "
        "training goes on",
    }


async def delete(client: KubeClient, *, namespace: str, name: str) -> Change:
    """Delete a job. NoSuchJobError, ApiError."""
    job = await get_job(client, namespace=namespace, name=name)
    await client.delete(RL_JOBS, namespace=namespace, name=name, uid=job["metadata"]["uid"])
    return {
        "namespace": namespace,
        "job": name,
        "message": f"{name} is deleted, and with it its pods; its checkpoint volume stays",
    }


def _refuse_if_finished(job: Object) -> None:
    phase = (job.get("status") or {}).get("phase", "")
    if phase in {JobPhase.SUCCEEDED, JobPhase.FAILED}:
        name = job["metadata"].get("name", "")
        raise FinishedJobError(
            f"job {name!r} is {phase}, which is final: nothing of it was changed; to train again, "
            "apply it under another name, or delete it first"
        )


def _labels(pod: Object | None) -> dict[str, str]:
    found: dict[str, str] = ((pod or {}).get("metadata") or {}).get("labels") or {}
    return found


def _no_such_pod(pod: str, namespace: str, found: Object | None, kind: str) -> str:
    problem = f"is no {kind}" if found else f"is not in namespace {namespace!r}"
    return f"pod {pod!r} {problem}; rollcall describe JOB lists those of a job"
