"""Reads everything that exists for one job, live: an event may be old by the time it is handled."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from rollcall_operator.api import labels
from rollcall_operator.control.job_state import Key
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    SERVICES,
    STATEFUL_SETS,
)
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import ObservedJob, PodFacts
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.status.failed_mounts import is_slow_to_mount, most_telling
from rollcall_operator.plan.timestamps import from_time

# The controller tries again after 1000 s at most, so that an older failure was overcome.
_FAILURE_SECONDS = 1200.0
_MOUNT_FAILURES = ("FailedMount", "FailedAttachVolume")  # of the kubelet, of the controller
_JOB_OF_POOL = "spec.jobRef.name"  # a selectable field of RolloutPool


class JobReader:
    """Reads with a few concurrent requests and caches nothing."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        """`clock` gives Unix seconds."""
        self._client = client
        self._clock = clock

    async def read(self, key: Key) -> ObservedJob:
        """What the API server holds for the job. Its memory, snapshot, refusals, nodes and keys
        are added by the reconciler. Raises the client's errors.
        """
        namespace, name = key
        selector = f"{labels.JOB}={name}"
        job = await self._client.find(RL_JOBS, namespace=namespace, name=name)
        try:
            async with asyncio.TaskGroup() as group:
                trust = group.create_task(self._trust(namespace, job))
                pools = group.create_task(
                    self._client.list(
                        ROLLOUT_POOLS, namespace=namespace, fields=f"{_JOB_OF_POOL}={name}"
                    )
                )
                pods = group.create_task(
                    self._client.list(PODS, namespace=namespace, labels=selector)
                )
                children = [
                    group.create_task(
                        self._client.list(resource, namespace=namespace, labels=selector)
                    )
                    for resource in (SERVICES, STATEFUL_SETS, DEPLOYMENTS, NETWORK_POLICIES)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = tuple(child for task in children for child in task.result())
        return ObservedJob(
            namespace=namespace,
            name=name,
            now=self._clock(),
            job=job,
            pools=pools.result(),
            children=(*trust.result(), *found),
            creation_failures=await self._creation_failures(namespace, found),
            pods=await self._with_mount_failures(
                namespace, [pod_facts(pod) for pod in pods.result()]
            ),
        )

    async def _creation_failures(
        self, namespace: str, children: tuple[Object, ...]
    ) -> dict[str, str]:
        """Why StatefulSets that lack pods could not create them, by key: only events say so."""
        failures = {}
        for child in children:
            if child["kind"] != STATEFUL_SETS.kind or not _lacks_pods(child):
                continue
            about = f"regarding.uid={child['metadata']['uid']},reason=FailedCreate"
            events = await self._client.list(EVENTS, namespace=namespace, fields=about)
            recent = [e for e in events if self._clock() - _last_seen(e) < _FAILURE_SECONDS]
            if recent:
                failures[apply_needed.key(child)] = max(recent, key=_last_seen).get("note") or ""
        return failures

    async def _with_mount_failures(
        self, namespace: str, pods: list[PodFacts]
    ) -> tuple[PodFacts, ...]:
        """The pods; those whose volumes are not mounted have the reason, which only events say."""
        now = self._clock()
        slow = {pod.uid for pod in pods if is_slow_to_mount(pod, now)}
        if not slow:
            return tuple(pods)
        notes: dict[str, list[tuple[float, str]]] = {}
        for reason in _MOUNT_FAILURES:  # for all pods at once: many may wait for one volume
            fields = f"regarding.kind=Pod,reason={reason}"
            for event in await self._client.list(EVENTS, namespace=namespace, fields=fields):
                about = notes.setdefault((event.get("regarding") or {}).get("uid", ""), [])
                about.append((_last_seen(event), event.get("note") or ""))
        return tuple(
            replace(pod, mount_failure=most_telling(notes.get(pod.uid, ())))
            if pod.uid in slow
            else pod
            for pod in pods
        )

    async def _trust(self, namespace: str, job: Object | None) -> tuple[Object, ...]:
        """The ConfigMap by its name: the operator lists no others."""
        if job is None:
            return ()
        name = labels.trust_name(job["metadata"]["name"])
        found = await self._client.find(CONFIG_MAPS, namespace=namespace, name=name)
        return () if found is None else (found,)


def _lacks_pods(stateful_set: Object) -> bool:
    created = (stateful_set.get("status") or {}).get("replicas", 0)
    return int(created) < int(stateful_set["spec"].get("replicas", 1))


def _last_seen(event: Object) -> float:
    """When it was last recorded: in a series, as a counted event, or once. Unix seconds."""
    series = (event.get("series") or {}).get("lastObservedTime")
    text = series or event.get("deprecatedLastTimestamp") or event.get("eventTime")
    return from_time(text or event["metadata"]["creationTimestamp"])
