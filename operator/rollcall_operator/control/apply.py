"""Writes a plan to the API server, in an order that makes dying between any two steps harmless."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from rollcall_operator.api import labels
from rollcall_operator.control.child_apply import apply_child
from rollcall_operator.control.own_writes import OwnWrites
from rollcall_operator.control.refused_children import RefusedChildren
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    TerminatingError,
)
from rollcall_operator.kube.event_recorder import EventRecorder
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    PODS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    resource_of,
)
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.model import (
    DeletionCost,
    JobKey,
    JobPlan,
    ObservedJob,
    PodDeletion,
    ReadinessGatePatch,
    Refusal,
)
from rollcall_operator.plan.status.job import more_than_progress
from rollcall_protocol.pod_contract import READINESS_GATE

log = logging.getLogger(__name__)

_CONCURRENT_WRITES = 16

Versions = Mapping[str, str]
"""resourceVersions of objects that were just written, by key such as "RolloutPool/reverse-cpu"."""


class Applier:
    """Writes what a plan says and nothing else. After a conflict the job is reconciled again."""

    def __init__(
        self,
        client: KubeClient,
        recorder: EventRecorder,
        writes: OwnWrites,
        *,
        timestamp: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`writes` gets each write; `timestamp` gives now as RFC 3339."""
        self._client = client
        self._recorder = recorder
        self._writes = writes
        self._timestamp = timestamp
        self._clock = clock
        self._refused: dict[JobKey, RefusedChildren] = {}

    async def write_objects(self, observed: ObservedJob, plan: JobPlan) -> Versions:
        """First half: deletion costs, children, deletes, and the job's status.

        Once it returns, a new epoch is in status. Raises ConflictError, TerminatingError, and the
        client's other errors, except RefusedError for children.
        """
        key = (observed.namespace, observed.name)
        await self._concurrently(self._set_cost(key, cost) for cost in plan.costs)
        versions: dict[str, str] = {}
        makers, others = _split(plan.applies)
        seen = _versions(observed)
        for bodies in (others, makers):  # pods come after the policies that protect them
            await self._concurrently(
                self._unless_refused(key, body, versions, force=apply_needed.key(body) in seen)
                for body in bodies
            )
        for gone in plan.deletes:
            log.info("Deleting %s %s", gone.kind, gone.name)
            resource = resource_of(gone.kind)
            await self._client.delete(resource, namespace=key[0], name=gone.name, uid=gone.uid)
            self._writes.deleted(key, resource.plural, gone.name, gone.uid)
        if plan.job_status is not None and observed.job is not None:
            await self._write_status(observed.job, plan.job_status)
        return versions

    async def write_pods_and_pools(
        self, observed: ObservedJob, plan: JobPlan, versions: Versions
    ) -> None:
        """Second half: pod deletions, readiness gates, pool statuses and events.

        `versions` is what `write_objects` returned. Raises the same errors.
        """
        key = (observed.namespace, observed.name)
        await self._concurrently(self._delete_pod(key, pod) for pod in plan.pod_deletions)
        await self._concurrently(self._set_gate(key, gate) for gate in plan.gates)
        await self._write_pool_statuses(observed, plan, versions)
        for event in plan.events:
            self._recorder.record(
                event.regarding, type_=event.type, reason=event.reason, message=event.message
            )

    def next_reconcile(
        self, observed: ObservedJob, plan: JobPlan, versions: Versions
    ) -> float | None:
        """Seconds after which the plan, once written, asks for another reconcile; None: never.

        `versions` is what `write_objects` returned.
        """
        reasons = [plan.requeue_after] if plan.requeue_after is not None else []
        seen = _versions(observed)
        written = {key for key, version in versions.items() if seen.get(key) != version}
        if any(not key.startswith(f"{DEPLOYMENTS.kind}/") for key in written):
            # A Deployment follows what its pool is now, uid and replicas. From a Deployment itself
            # only pods follow, and these are watched.
            reasons.append(0.0)
        if plan.job_status is not None and observed.job is not None:
            before = observed.job.get("status") or {}
            if more_than_progress(before, plan.job_status):
                reasons.append(0.0)  # what follows from a new epoch or phase is planned from it
        refused = self._refused.get((observed.namespace, observed.name))
        if refused is not None:
            if refused.refusals.items() - observed.refusals.items():
                reasons.append(0.0)  # to report the refusal in a condition
            retry = refused.next_retry()
            reasons += [] if retry is None else [retry]
        return min(reasons, default=None)

    # --- refused children ----------------------------------------------------------------------

    def refusals(self, key: JobKey) -> Mapping[str, Refusal]:
        """The children of a job that the API server refuses, for the planner."""
        refused = self._refused.get(key)
        return {} if refused is None else refused.refusals

    async def retry_refused(self, key: JobKey) -> None:
        """Try again, in a dry run, the refused children that are due; raises client errors."""
        refused = self._refused.get(key)
        if refused is not None:
            await refused.retry()

    def forget(self, key: JobKey) -> None:
        """The job is gone, or another one has its name."""
        self._refused.pop(key, None)

    async def _unless_refused(
        self, key: JobKey, body: Object, versions: dict[str, str], *, force: bool
    ) -> None:
        """A refusal is remembered for a condition: the other children are written all the same.

        What was not seen may be there, as somebody else's: without `force` it is not taken over.
        """
        refused = self._refused.setdefault(key, RefusedChildren(self._client, clock=self._clock))
        try:
            await self._apply(body, versions, force=force)
        except TerminatingError:
            raise
        except RefusedError as error:
            log.warning("The API server refused %s: %s", apply_needed.key(body), error.message)
            refused.add(body, error.message, force=force)
        else:
            refused.discard(body)

    # --- one object ----------------------------------------------------------------------------

    async def _apply(self, body: Object, versions: dict[str, str], *, force: bool) -> None:
        written = await apply_child(self._client, body, force=force)
        self._writes.wrote(resource_of(body["kind"]), written)
        versions[apply_needed.key(body)] = written["metadata"]["resourceVersion"]
        log.info("Applied %s", apply_needed.key(body))

    async def _write_status(self, live: Object, status: Object, version: str = "") -> None:
        patch = merge_patch(live.get("status") or {}, status)
        if not patch:
            return
        resource = resource_of(live["kind"])
        written = await self._client.patch_status(
            resource,
            namespace=live["metadata"]["namespace"],
            name=live["metadata"]["name"],
            patch=patch,
            resource_version=version or live["metadata"]["resourceVersion"],
        )
        self._writes.wrote(resource, written)

    async def _write_pool_statuses(
        self, observed: ObservedJob, plan: JobPlan, versions: Versions
    ) -> None:
        by_name = {pool["metadata"]["name"]: pool for pool in observed.pools}
        for name, status in plan.pool_statuses.items():
            pool = by_name.get(name)
            if pool is None:
                continue
            version = versions.get(f"{ROLLOUT_POOLS.kind}/{name}", "")
            await self._write_status(pool, status, version)

    # --- pods ----------------------------------------------------------------------------------

    async def _concurrently(self, writes: Iterable[Awaitable[None]]) -> None:
        """At most 16 at a time; raises the first error after all have been tried."""
        limit = asyncio.Semaphore(_CONCURRENT_WRITES)

        async def one(write: Awaitable[None]) -> None:
            async with limit:
                await write

        results = await asyncio.gather(*(one(write) for write in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _set_cost(self, key: JobKey, cost: DeletionCost) -> None:
        """A scale-down does not wait for costs that cannot be written."""
        try:
            written = await self._client.set_pod_annotation(
                namespace=key[0],
                name=cost.pod,
                uid=cost.uid,
                key=labels.DELETION_COST,
                value=cost.cost,
            )
            self._writes.wrote(PODS, written)
        except (NotFoundError, ConflictError):
            log.debug("Pod %s was deleted; it needs no deletion cost", cost.pod)
        except RefusedError as error:
            log.warning(
                "The API server refused the deletion cost of pod %s: %s", cost.pod, error.message
            )

    async def _delete_pod(self, key: JobKey, deletion: PodDeletion) -> None:
        log.info("%s pod %s", "Force-deleting" if deletion.force else "Deleting", deletion.pod)
        grace = 0 if deletion.force else None
        try:
            await self._client.delete(
                PODS,
                namespace=key[0],
                name=deletion.pod,
                uid=deletion.uid,
                version=deletion.version,
                grace=grace,
            )
            self._writes.deleted(key, PODS.plural, deletion.pod, deletion.uid)
        except ConflictError:
            log.info("Pod %s has changed; whether to delete it is decided again", deletion.pod)
            self._writes.doubt(key)
        except RefusedError as error:
            log.warning("The API server refused to delete pod %s: %s", deletion.pod, error.message)

    async def _set_gate(self, key: JobKey, gate: ReadinessGatePatch) -> None:
        condition = {
            "type": READINESS_GATE,
            "status": "True" if gate.in_sync else "False",
            "reason": gate.reason,
            "message": gate.message,
            "lastTransitionTime": self._timestamp(),
        }
        try:
            written = await self._client.set_pod_condition(
                namespace=key[0], name=gate.pod, uid=gate.uid, condition=condition
            )
            self._writes.wrote(PODS, written)
        except (NotFoundError, ConflictError):
            log.debug("Pod %s was deleted; its readiness gate needs no patch", gate.pod)


def _versions(observed: ObservedJob) -> Versions:
    """Of the job's children and pools."""
    return {
        apply_needed.key(each): each["metadata"]["resourceVersion"]
        for each in (*observed.children, *observed.pools)
    }


def _split(bodies: Iterable[Object]) -> tuple[list[Object], list[Object]]:
    """Those that make pods, and the others."""
    kinds = {STATEFUL_SETS.kind, DEPLOYMENTS.kind}
    makers = [body for body in bodies if body["kind"] in kinds]
    return makers, [body for body in bodies if body["kind"] not in kinds]


def merge_patch(live: Object, wanted: Object) -> Object:
    """The JSON merge patch that turns `live` into `wanted`; empty when they are equal."""
    patch: Object = {name: None for name in live if name not in wanted}
    for name, value in wanted.items():
        before = live.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = merge_patch(before, value)
            if inner:
                patch[name] = inner
        elif name not in live or value != before:
            patch[name] = value
    return patch
