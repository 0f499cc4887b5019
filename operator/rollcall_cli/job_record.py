"""Everything that is known of a job at one moment, read from the API server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall_cli.job_samples import as_object, read_samples
from rollcall_cli.trainer_pod import read_from_trainer
from rollcall_operator.kube.errors import ApiError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import EVENTS, RL_JOBS, ROLLOUT_POOLS
from rollcall_protocol.sample_query import MOST_ANSWERED, SampleQuery
from rollcall_protocol.step_history import MOST_BYTES, ROUTE, StepRow, read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_operator.kube.client import KubeClient, Object
    from rollcall_protocol.sample_record import SampleRecord

_SAMPLES = SampleQuery(order="spread", limit=MOST_ANSWERED)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """An RLJob with its pools, events, the steps that its trainer has made, and its responses.

    `missing`: what could not be read, and why; one sentence each.
    """

    job: Object
    pools: Sequence[Object] = ()
    events: Sequence[Object] = ()
    steps: Sequence[StepRow] = ()
    samples: Sequence[SampleRecord] = ()
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
            "samples": [as_object(record) for record in self.samples],
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
    samples: list[SampleRecord] = []
    try:
        steps = await _steps(client, namespace, name)
        samples = await read_samples(client, namespace=namespace, job=name, query=_SAMPLES)
    except (ApiError, UnreachableError) as error:
        what = "The responses" if steps else "The figures of steps"
        missing.append(f"{what} could not be read from the trainer: {error}")
    return JobRecord(
        job=job,
        pools=[pool for pool in pools if pool["spec"]["jobRef"]["name"] == name],
        events=events,
        steps=steps,
        samples=samples,
        missing=missing,
    )


async def _steps(client: KubeClient, namespace: str, name: str) -> list[StepRow]:
    text = await read_from_trainer(
        client, namespace=namespace, job=name, route=ROUTE, most_bytes=MOST_BYTES
    )
    return read_rows(text.decode(errors="replace"))
