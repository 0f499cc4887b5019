"""What people change of a running job: suspend it, resume it, have one rollout drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_cli.job_record import get_job
from rollcall_operator.api.labels import JOB, POOL, ROLE, ROLLOUT
from rollcall_operator.kube.resources import PODS, RL_JOBS

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient, Object


class NotARolloutError(Exception):
    """The pod is not there, or is no rollout; the message says which pods are."""


async def set_suspended(
    client: KubeClient, *, namespace: str, name: str, suspended: bool
) -> dict[str, Any]:
    """Suspend or resume a job; `message` says what happens next. NoSuchJobError, ApiError."""
    job = await get_job(client, namespace=namespace, name=name)
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


async def drain(client: KubeClient, *, namespace: str, pod: str) -> dict[str, Any]:
    """Delete a rollout's pod, which drains it; `message` says what happens next.

    NotARolloutError if the pod is not there or is another one's; ApiError.
    """
    found = await client.find(PODS, namespace=namespace, name=pod)
    labels = ((found or {}).get("metadata") or {}).get("labels") or {}
    if found is None or labels.get(ROLE) != ROLLOUT:
        problem = "is no rollout" if found else f"is not in namespace {namespace!r}"
        command = f"kubectl get pods --selector {ROLE}={ROLLOUT}"
        raise NotARolloutError(f"pod {pod!r} {problem}; list the rollouts with: {command}")
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
