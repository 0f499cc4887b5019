"""What a job does now, what it waits for, who is behind, and its last epochs: as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_cli.job_record import JobRecord, get_job
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.labels import JOB, POOL, ROLE, ROLLOUT
from rollcall_operator.kube.resources import PODS
from rollcall_protocol.pod_contract import READINESS_GATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rollcall_operator.kube.client import KubeClient, Object

_USUALLY_FALSE = {JobCondition.SUSPENDED, JobCondition.FAILED, JobCondition.SUCCEEDED}
_ASKED_FOR = {Reason.SUSPENDED, Reason.FINISHED, Reason.NETWORK_POLICIES_DISABLED}


async def read_summary(client: KubeClient, *, namespace: str, name: str) -> dict[str, Any]:
    """The summary of a job; raises as `get_job` does."""
    job = await get_job(client, namespace=namespace, name=name)
    labels = f"{JOB}={name},{ROLE}={ROLLOUT}"
    rollouts = await client.list(PODS, namespace=namespace, labels=labels)
    return summarize(JobRecord(job), rollouts)


def summarize(record: JobRecord, rollouts: Sequence[Object]) -> dict[str, Any]:
    """The answer of `rollcall status -o json`; `rollouts` are the job's pods."""
    status = record.status
    progress, trainer = status.get("progress") or {}, status.get("trainer") or {}
    found = {
        "namespace": record.namespace,
        "name": record.name,
        "phase": status.get("phase"),
        "startTime": status.get("startTime"),
        "completionTime": status.get("completionTime"),
        "staleSince": status.get("staleSince"),
        "step": progress.get("step"),
        "maxSteps": progress.get("maxSteps"),
        "weightVersion": progress.get("weightVersion"),
        "rolloutReward": progress.get("rolloutReward"),
        "stepsAlike": progress.get("stepsAlike") or None,
        "paused": progress.get("paused"),
        "warning": progress.get("warning"),
        "learning": learning(status),
        "trainer": {key: trainer[key] for key in ("ready", "replicas", "totalRestarts") if trainer},
        "problems": list(problems(status)),
        "pools": status.get("pools") or [],
        "rollouts": [describe_rollout(pod) for pod in rollouts],
        "epochs": epochs(record),
        "sessions": sessions(record),
    }
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def steps(progress: Mapping[str, Any]) -> str:
    """Such as `5 of 200`, or `5` where the trainer alone knows how many there are to be."""
    most = progress.get("maxSteps")
    return f"{progress.get('step', 0)}" + (f" of {most}" if most else "")


def learning(status: Mapping[str, Any]) -> str | None:
    """In a word whether training gets anywhere, or why not; None before enough steps are known."""
    found = (c for c in status.get("conditions") or () if c["type"] == JobCondition.LEARNING)
    return next((c.get("reason") for c in found), None)


def problems(status: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The conditions that are not as those of a job that trains.

    Those that the spec asks for are no problems, nor what only follows from the end of a job.
    """
    for condition in status.get("conditions") or ():
        usual = "False" if condition["type"] in _USUALLY_FALSE else "True"
        asked_for = usual == "True" and condition.get("reason") in _ASKED_FOR
        if condition["status"] != usual and not asked_for:
            yield {
                key: str(condition.get(key, ""))
                for key in ("type", "reason", "message", "lastTransitionTime")
            }


def describe_rollout(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Name, pool, node, and what its readiness gate says of its weights."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    gate: Mapping[str, Any] = next((c for c in conditions if c["type"] == READINESS_GATE), {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    found = {
        "name": pod["metadata"]["name"],
        "pool": (pod["metadata"].get("labels") or {}).get(POOL),
        "node": (pod.get("spec") or {}).get("nodeName"),
        "ready": ready,
        "inSync": gate.get("status") == "True",
        "reason": gate.get("reason"),
        "message": gate.get("message"),
    }
    if "deletionTimestamp" in pod["metadata"]:
        found |= {"reason": "Terminating", "message": "the pod is being deleted"}
    return {name: value for name, value in found.items() if value not in (None, "")}


def epochs(record: JobRecord) -> Sequence[dict[str, Any]]:
    """The latest epochs, oldest first, each with cause, members and what changed."""
    return list(record.default_group.get("history") or ())


def sessions(record: JobRecord) -> Sequence[dict[str, Any]]:
    """The latest sessions of all sync groups, oldest first, each with its group."""
    found = [
        {"group": group["name"], **session}
        for group in record.status.get("syncGroups") or ()
        for session in group.get("sessions") or ()
    ]
    return sorted(found, key=lambda session: str(session.get("time", "")))
