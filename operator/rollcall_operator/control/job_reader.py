"""Reads the world for one job, live: what an event said may be old by the time it is looked at."""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field

from rollcall_operator.api import labels
from rollcall_operator.control.job_state import JobState, Key
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.pod_dialer import PodAddress
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
)
from rollcall_operator.plan.model import ObservedJob
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_protocol.env import OPERATOR_TOKEN_FILE
from rollcall_protocol.wire.job_snapshot import JobSnapshot

_JOB_OF = "spec.jobRef.name"  # selectable in the RolloutPool's definition


@dataclass(frozen=True, slots=True)
class Sight:
    """What was read: for the planner, and what a link needs."""

    job: Object | None
    pools: tuple[Object, ...]
    children: tuple[Object, ...]
    pods: tuple[Object, ...]
    token_exists: bool
    token: str = field(repr=False)
    coordinator: PodAddress | None

    @property
    def gone(self) -> bool:
        """Nothing is left that a reconcile could be about."""
        return self.job is None and not self.pools


class JobReader:
    """Reads with a few requests at once; nothing is cached but what is wrong with nodes."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float], nodes: NodeWatch) -> None:
        """`clock` gives Unix seconds."""
        self._client = client
        self._clock = clock
        self._nodes = nodes

    async def look(self, key: Key) -> Sight:
        """GET the job and its token, LIST what carries its label. Raises the client's errors."""
        namespace, name = key
        mine = f"{labels.JOB}={name}"
        job = await self._client.find(RL_JOBS, namespace=namespace, name=name)
        try:
            async with asyncio.TaskGroup() as group:
                token = group.create_task(self._token(namespace, job))
                pools = group.create_task(
                    self._client.list(
                        ROLLOUT_POOLS, namespace=namespace, fields=f"{_JOB_OF}={name}"
                    )
                )
                pods = group.create_task(self._client.list(PODS, namespace=namespace, labels=mine))
                children = [
                    group.create_task(self._client.list(resource, namespace=namespace, labels=mine))
                    for resource in (SERVICES, STATEFUL_SETS, DEPLOYMENTS)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return Sight(
            job=job,
            pools=pools.result(),
            children=tuple(child for task in children for child in task.result()),
            pods=pods.result(),
            token_exists=token.result() is not None,
            token=_operator_token(token.result()),
            coordinator=_coordinator(pods.result(), labels.coordinator_pod(name)),
        )

    async def _token(self, namespace: str, job: Object | None) -> Object | None:
        if job is None:
            return None
        name = labels.token_name(job["metadata"]["name"], job["metadata"]["uid"])
        return await self._client.find(SECRETS, namespace=namespace, name=name)

    def observed(self, key: Key, sight: Sight, state: JobState) -> ObservedJob:
        """The planner's input: the sight, what is remembered, and the coordinator's last words."""
        pods = tuple(pod_facts(pod) for pod in sight.pods)
        return ObservedJob(
            namespace=key[0],
            name=key[1],
            now=self._clock(),
            job=sight.job,
            pools=sight.pools,
            children=sight.children,
            token_exists=sight.token_exists,
            pods=pods,
            snapshot=_snapshot(state),
            memory=state.memory,
            refusals={name: child.refusal for name, child in state.refused.items()},
            nodes=self._nodes.troubled(key, (pod.node for pod in pods)),
        )

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._nodes.forget(key)


def _snapshot(state: JobState) -> JobSnapshot | None:
    return state.link.snapshot if state.link is not None else None


def _operator_token(secret: Object | None) -> str:
    encoded = ((secret or {}).get("data") or {}).get(OPERATOR_TOKEN_FILE, "")
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""  # somebody else's Secret: pushes will be refused, and say so


def _coordinator(pods: tuple[Object, ...], name: str) -> PodAddress | None:
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status") or {}
        if meta["name"] == name and status.get("podIP") and status.get("phase") == "Running":
            return PodAddress(
                namespace=meta["namespace"], name=name, uid=meta["uid"], ip=status["podIP"]
            )
    return None
