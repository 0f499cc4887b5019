"""What the trainer's first pod answers at the port of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_operator.api.labels import JOB, ROLE, TRAINER
from rollcall_operator.kube.errors import UnreachableError
from rollcall_operator.kube.resources import PODS
from rollcall_protocol.pod_contract import METRICS_PORT

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


async def read_from_trainer(
    client: KubeClient, *, namespace: str, job: str, route: str, most_bytes: int
) -> bytes:
    """Through the API server's proxy. UnreachableError if there is no such pod, or if the answer is
    longer; ApiError of the API server and of the pod.
    """
    trainers = await client.list(PODS, namespace=namespace, labels=f"{JOB}={job},{ROLE}={TRAINER}")
    first = f"{job}-trainer-0"
    if all(pod["metadata"]["name"] != first for pod in trainers):
        raise UnreachableError(
            f"there is no pod {first}; figures and responses are kept in it, so ask while the job "
            "runs, or set spec.cleanPodPolicy to None"
        )
    return await client.read_from_pod(
        namespace=namespace, name=first, port=METRICS_PORT, route=route, most_bytes=most_bytes
    )
