"""Everything that is known of a job at one moment, read from the API server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall_operator.api.labels import JOB, ROLE, TRAINER
from rollcall_operator.kube.errors import ApiError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import EVENTS, PODS, RL_JOBS, ROLLOUT_POOLS
from rollcall_protocol.pod_contract import METRICS_PORT
from rollcall_protocol.step_history import MOST_BYTES, ROUTE, StepRow, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_operator.kube.client import KubeClient, Object


@dataclass(frozen=True, slots=True)
class JobRecord:
    """An RLJob with its pools, events and the steps that its trainer has made.

    `missing`: what could not be read, and why; one sentence each.
    """

    job: Object
    pools: Sequence[Object] = ()
    events: Sequence[Object] = ()
    steps: Sequence[StepRow] = ()
    missing: Sequence[str] = ()
    status: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        """Keep the status at hand."""
        object.__setattr__(self, "status", self.job.get("status") or {})

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.job["metadata"]["namespace"])

    @property
    def default_group(self) -> dict[str, Any]:
        """The status of the default sync group; empty before the first epoch."""
        groups: Sequence[dict[str, Any]] = self.status.get("syncGroups") or ({},)
        return groups[0]

    def as_json(self) -> dict[str, Any]:
        """All of it, as `rollcall report -o json` writes it."""
        return {
            "job": self.job,
            "pools": list(self.pools),
            "events": list(self.events),
            "steps": [asdict(row) for row in self.steps],
            "missing": list(self.missing),
        }


class NoSuchJobError(Exception):
    """There is no such RLJob in that namespace; the message says how to list them."""


async def get_job(client: KubeClient, *, namespace: str, name: str) -> Object:
    """The RLJob. NoSuchJobError; ApiError and UnreachableError of the API server."""
    try:
        return await client.get(RL_JOBS, namespace=namespace, name=name)
    except NotFoundError as error:
        raise NoSuchJobError(
            f"there is no RLJob {name!r} in namespace {namespace!r}; list all with: kubectl get "
            "rljobs --all-namespaces"
        ) from error


async def read_job(client: KubeClient, *, namespace: str, name: str) -> JobRecord:
    """Read the job; raises as `get_job` does if the RLJob cannot be read."""
    job = await get_job(client, namespace=namespace, name=name)
    uid, missing = job["metadata"]["uid"], []
    pools, events = await asyncio.gather(
        client.list(ROLLOUT_POOLS, namespace=namespace),
        client.list(EVENTS, namespace=namespace, fields=f"regarding.uid={uid}"),
    )
    steps: list[StepRow] = []
    try:
        steps = await _steps(client, namespace, name)
    except (ApiError, UnreachableError) as error:
        missing.append(f"The figures of steps could not be read from the trainer: {error}")
    return JobRecord(
        job=job,
        pools=[pool for pool in pools if pool["spec"]["jobRef"]["name"] == name],
        events=events,
        steps=steps,
        missing=missing,
    )


async def _steps(client: KubeClient, namespace: str, name: str) -> list[StepRow]:
    trainers = await client.list(PODS, namespace=namespace, labels=f"{JOB}={name},{ROLE}={TRAINER}")
    first = f"{name}-trainer-0"
    if all(pod["metadata"]["name"] != first for pod in trainers):
        raise UnreachableError(
            f"there is no pod {first}; figures are kept in it, so ask while the job runs, or set "
            "spec.cleanPodPolicy to None"
        )
    text = await client.read_from_pod(
        namespace=namespace, name=first, port=METRICS_PORT, route=ROUTE, most_bytes=MOST_BYTES
    )
    return read_rows(text.decode(errors="replace"))
