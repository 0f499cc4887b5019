"""Gathers everything that exists for one job: from its store, and live where that may be behind."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rollcall_operator.api import labels
from rollcall_operator.control.job_store import CHILDREN, JobObjects, JobStore
from rollcall_operator.control.own_writes import LONGEST_WAIT, OwnWrites
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import (
    EVENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import JobKey, ObservedJob, PodFacts
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.status.failed_mounts import is_slow_to_mount, most_telling
from rollcall_operator.plan.timestamps import from_time

PODS_DUE_SECONDS = 10.0
"""Seconds that a new StatefulSet may lack pods before its events are read."""

SHARED_SECONDS = 5.0
"""How long the events that were read of a namespace serve all jobs in it."""

# The controller tries again after 1000 s at most, so that an older failure was overcome.
_FAILURE_SECONDS = 1200.0
_CREATION_FAILURE = "FailedCreate"
_MOUNT_FAILURES = ("FailedMount", "FailedAttachVolume")  # of the kubelet, of the controller
_JOB_OF_POOL = "spec.jobRef.name"  # a selectable field of RolloutPool


class BehindError(Exception):
    """The store still has what the operator has deleted: try again in `wait` seconds at most."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"the watches are behind; reading live in {wait:.1f} s")
        self.wait = wait


class RecentEvents:
    """Events about objects of jobs. They are not watched: few of them say what no object says.

    The API server has no index of events: a LIST with a field selector reads all of a namespace.
    So one is made at a time, and jobs of a namespace share what it found.
    """

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds; by them what was read grows old."""
        self._client, self._clock = client, clock
        self._one_at_a_time = asyncio.Lock()
        self._found: dict[tuple[str, str], tuple[float, tuple[Object, ...]]] = {}

    async def with_reason(self, namespace: str, reason: str) -> tuple[Object, ...]:
        """Events of this reason, SHARED_SECONDS old at most; raises the client's errors."""
        key = namespace, reason
        async with self._one_at_a_time:
            oldest = self._clock() - SHARED_SECONDS
            self._found = {k: found for k, found in self._found.items() if found[0] > oldest}
            if key not in self._found:
                fields = f"reason={reason}"
                events = await self._client.list(EVENTS, namespace=namespace, fields=fields)
                self._found[key] = self._clock(), events
            return self._found[key][1]


class JobReader:
    """`lost_for()` is how many seconds one of the watches has been failing, 0 if none is."""

    def __init__(
        self,
        client: KubeClient,
        *,
        store: JobStore,
        writes: OwnWrites,
        lost_for: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._client, self._store, self._writes = client, store, writes
        self._lost_for, self._clock = lost_for, clock
        self._events = RecentEvents(client, clock=clock)

    async def read(self, key: JobKey) -> ObservedJob:
        """What the API server holds for the job. Its memory, snapshot, refusals, nodes and keys
        are added by the reconciler. Raises BehindError, and the client's errors.
        """
        namespace, name = key
        objects = await self._objects(key)
        return ObservedJob(
            namespace=namespace,
            name=name,
            now=self._clock(),
            job=objects.job,
            pools=objects.pools,
            children=objects.children,
            creation_failures=await self._creation_failures(namespace, objects.children),
            pods=await self._with_mount_failures(namespace, objects.pods),
            contents=objects.contents,
        )

    # --- the job's objects ---------------------------------------------------------------------

    async def _objects(self, key: JobKey) -> JobObjects:
        wait = self._writes.wait(key)
        if wait:
            raise BehindError(wait)
        found = self._store.objects(key)
        # A watch of RLJobs may be behind that of pools. Without its job, a pool's pods would go.
        alone = found.job is None and found.pools
        lost = self._lost_for() > LONGEST_WAIT
        return await self._live(key) if wait == 0.0 or alone or lost else found

    async def _live(self, key: JobKey) -> JobObjects:
        namespace, name = key
        own = {"labels": f"{labels.JOB}={name}"}
        selectors: dict[Resource, dict[str, str]] = {
            RL_JOBS: {"fields": f"metadata.name={name}"},
            ROLLOUT_POOLS: {"fields": f"{_JOB_OF_POOL}={name}"},
            PODS: own,
            **dict.fromkeys(CHILDREN, own),
        }
        # The RLJob is read first, so that the pods that its status names exist in what is read
        # after it.
        jobs = selectors.pop(RL_JOBS)
        found = {RL_JOBS: await self._client.list(RL_JOBS, namespace=namespace, **jobs)}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    resource: group.create_task(
                        self._client.list(resource, namespace=namespace, **selector)
                    )
                    for resource, selector in selectors.items()
                }
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found |= {resource: task.result() for resource, task in tasks.items()}
        self._must_see(key, found)
        return JobObjects(
            job=next(iter(found[RL_JOBS]), None),
            pools=found[ROLLOUT_POOLS],
            children=tuple(child for resource in CHILDREN for child in found[resource]),
            pods=tuple(map(pod_facts, found[PODS])),
        )

    def _must_see(self, key: JobKey, found: Mapping[Resource, tuple[Object, ...]]) -> None:
        """The store has what was read; it must lose the rest before the job is planned from it."""
        self._writes.read(key)
        there = set()
        for resource, objects in found.items():
            for each in objects:
                metadata = each["metadata"]
                there.add((resource.plural, metadata["name"], metadata["uid"]))
                self._writes.wrote(resource, each)
        for plural, name, uid in self._store.identities(key) - there:
            self._writes.deleted(key, plural, name, uid)

    # --- events, which are not watched ---------------------------------------------------------

    async def _creation_failures(
        self, namespace: str, children: Iterable[Object]
    ) -> dict[str, str]:
        """Why StatefulSets that lack pods could not create them, by key: only events say so."""
        failures = {}
        for child in children:
            if child["kind"] != STATEFUL_SETS.kind or not self._lacks_pods(child):
                continue
            uid, now = child["metadata"]["uid"], self._clock()
            events = await self._events.with_reason(namespace, _CREATION_FAILURE)
            about = [e for e in events if _regarding(e) == uid]
            recent = [e for e in about if now - _last_seen(e) < _FAILURE_SECONDS]
            if recent:
                failures[apply_needed.key(child)] = max(recent, key=_last_seen).get("note") or ""
        return failures

    def _lacks_pods(self, stateful_set: Object) -> bool:
        """Whether it lacks pods that it has had the time to create."""
        created = int((stateful_set.get("status") or {}).get("replicas", 0))
        age = self._clock() - from_time(stateful_set["metadata"]["creationTimestamp"])
        return created < int(stateful_set["spec"].get("replicas", 1)) and age >= PODS_DUE_SECONDS

    async def _with_mount_failures(
        self, namespace: str, pods: tuple[PodFacts, ...]
    ) -> tuple[PodFacts, ...]:
        """The pods; those whose volumes are not mounted have the reason, which only events say."""
        now = self._clock()
        slow = {pod.uid for pod in pods if is_slow_to_mount(pod, now)}
        if not slow:
            return pods
        notes: dict[str, list[tuple[float, str]]] = {}
        for reason in _MOUNT_FAILURES:  # for all pods at once: many may wait for one volume
            for event in await self._events.with_reason(namespace, reason):
                about = notes.setdefault(_regarding(event), [])
                about.append((_last_seen(event), event.get("note") or ""))
        return tuple(
            replace(pod, mount_failure=most_telling(notes.get(pod.uid, ())))
            if pod.uid in slow
            else pod
            for pod in pods
        )


def _regarding(event: Object) -> str:
    return str((event.get("regarding") or {}).get("uid", ""))


def _last_seen(event: Object) -> float:
    """When it was last recorded: in a series, as a counted event, or once. Unix seconds."""
    series = (event.get("series") or {}).get("lastObservedTime")
    text = series or event.get("deprecatedLastTimestamp") or event.get("eventTime")
    return from_time(text or event["metadata"]["creationTimestamp"])
