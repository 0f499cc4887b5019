"""All that the operator says of a job: as JSON values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from rollcall_cli.job_record import get_job
from rollcall_operator.api.labels import JOB, ROLE
from rollcall_operator.kube.resources import EVENTS, PODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_operator.kube.client import KubeClient, Object

_OF_CONDITION = ("type", "status", "reason", "message")


async def read_description(client: KubeClient, *, namespace: str, name: str) -> dict[str, Any]:
    """A job's conditions, pods and events; raises as `get_job` does."""
    job = await get_job(client, namespace=namespace, name=name)
    pods, events = await asyncio.gather(
        client.list(PODS, namespace=namespace, labels=f"{JOB}={name}"),
        client.list(EVENTS, namespace=namespace),
    )
    about = {each["metadata"]["uid"] for each in (job, *pods)}
    reported = [event for event in events if (event.get("regarding") or {}).get("uid") in about]
    status = job.get("status") or {}
    conditions = status.get("conditions") or ()
    return {
        "namespace": namespace,
        "name": name,
        "phase": status.get("phase", "Pending"),
        "conditions": [{key: c.get(key, "") for key in _OF_CONDITION} for c in conditions],
        "pods": [_pod(pod) for pod in pods],
        "events": sorted((_event(event) for event in reported), key=lambda event: event["time"]),
    }


def _pod(pod: Object) -> dict[str, Any]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    return {
        "name": metadata["name"],
        "role": (metadata.get("labels") or {}).get(ROLE, ""),
        "phase": "Terminating" if "deletionTimestamp" in metadata else status.get("phase", ""),
        "ready": conditions.get("Ready", {}).get("status") == "True",
        "restarts": sum(container["restartCount"] for container in containers),
        "says": "; ".join(filter(None, map(_says, containers)))
        or conditions.get("PodScheduled", {}).get("message", ""),
    }


def _says(container: Mapping[str, Any]) -> str:
    """Why a container waits, or how it has ended last."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    for found in (state.get("waiting"), state.get("terminated"), last.get("terminated")):
        if found:
            words = (found.get("reason", ""), (found.get("message") or "").strip().split("\n")[0])
            return ": ".join(filter(None, words))
    return ""


def _event(event: Object) -> dict[str, Any]:
    series = event.get("series") or {}
    return {
        "time": series.get("lastObservedTime") or event.get("eventTime") or "",
        "type": event.get("type", ""),
        "reason": event.get("reason", ""),
        "about": (event.get("regarding") or {}).get("name", ""),
        "message": event.get("note", ""),
        "count": series.get("count", 1),
    }
