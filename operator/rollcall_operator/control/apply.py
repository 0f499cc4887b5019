"""Carries a plan out, in the order that makes dying between any two steps harmless."""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable

from rollcall_operator.api import labels
from rollcall_operator.control.job_state import JobState, Key, RefusedChild
from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    TerminatingError,
)
from rollcall_operator.kube.event_recorder import EventRecorder
from rollcall_operator.kube.resources import PODS, ROLLOUT_POOLS, SECRETS, resource_of
from rollcall_operator.plan import diff
from rollcall_operator.plan.model import (
    DeletionCost,
    JobPlan,
    ObservedJob,
    PodDeletion,
    ReadinessGatePatch,
    Refusal,
)
from rollcall_protocol.env import READINESS_GATE

log = logging.getLogger(__name__)

_FIRST_RETRY = 10.0
_LAST_RETRY = 300.0
_AT_ONCE = 16


class Applier:
    """Writes what a plan says and nothing else. Conflicts go up: the world moved, look again."""

    def __init__(
        self,
        client: KubeClient,
        recorder: EventRecorder,
        *,
        timestamp: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timestamp` gives now as RFC 3339."""
        self._client = client
        self._recorder = recorder
        self._timestamp = timestamp
        self._clock = clock

    async def carry_out(
        self, observed: ObservedJob, plan: JobPlan, state: JobState
    ) -> float | None:
        """Write in order; returns seconds after which to look again, if there is a reason.

        The planner's memory is kept, and the roster handed to the link, only once the status that
        names its epoch is written. Raises ConflictError, TerminatingError, and the client's other
        errors.
        """
        key = (observed.namespace, observed.name)
        await self._to_pods(self._set_cost(key, cost) for cost in plan.costs)
        if plan.token is not None:
            await self._or_refusal(plan.token, state, self._create_token(plan.token))
        versions: dict[str, str] = {}
        for body in plan.applies:
            await self._or_refusal(body, state, self._apply(body, versions))
        for gone in plan.deletes:
            log.info("Deleting %s %s", gone.kind, gone.name)
            await self._client.delete(
                resource_of(gone.kind), namespace=key[0], name=gone.name, uid=gone.uid
            )
        if plan.job_status is not None and observed.job is not None:
            await self._write_status(observed.job, plan.job_status)
        state.memory = plan.memory
        if state.link is not None:
            state.link.want(plan.roster)
        await self._to_pods(self._remove(key, removal) for removal in plan.removals)
        await self._to_pods(self._set_gate(key, gate) for gate in plan.gates)
        await self._write_pool_statuses(observed, plan, versions)
        for event in plan.events:
            self._recorder.record(
                event.regarding, type_=event.type, reason=event.reason, message=event.message
            )
        return self._look_again(observed, plan, state)

    async def retry_refused(self, state: JobState) -> None:
        """Ask again, by a dry run, about children whose wait is over; forget those accepted now."""
        now = self._clock()
        for name, child in list(state.refused.items()):
            if child.retry_at > now:
                continue
            try:
                await self._client.apply(child.body, dry_run=True)
            except TerminatingError:
                raise
            except RefusedError as error:
                child.attempts += 1
                child.retry_at = now + _retry_delay(child.attempts)
                child.refusal = Refusal(digest=child.refusal.digest, message=error.message)
            else:
                del state.refused[name]

    # --- one object ----------------------------------------------------------------------------

    async def _or_refusal(self, body: Object, state: JobState, write: Awaitable[None]) -> None:
        """A refusal is remembered, for a condition: neither retried at once nor in others' way."""
        name = diff.key(body)
        try:
            await write
        except TerminatingError:
            raise
        except RefusedError as error:
            log.warning("%s refused: %s", name, error.message)
            meta = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
            state.refused[name] = RefusedChild(
                body={**body, "metadata": meta},
                refusal=Refusal(digest=diff.digest(body), message=error.message),
                retry_at=self._clock() + _FIRST_RETRY,
            )
        else:
            state.refused.pop(name, None)

    async def _create_token(self, body: Object) -> None:
        filled = {name: secrets.token_urlsafe(32) for name in body["stringData"]}
        await self._client.create(SECRETS, {**body, "stringData": filled})

    async def _apply(self, body: Object, versions: dict[str, str]) -> None:
        written = await self._client.apply(body)
        versions[diff.key(body)] = written["metadata"]["resourceVersion"]
        log.info("Applied %s", diff.key(body))

    async def _write_status(self, live: Object, status: Object, version: str = "") -> None:
        patch = merge_patch(live.get("status") or {}, status)
        if not patch:
            return
        await self._client.patch_status(
            resource_of(live["kind"]),
            namespace=live["metadata"]["namespace"],
            name=live["metadata"]["name"],
            patch=patch,
            resource_version=version or live["metadata"]["resourceVersion"],
        )

    async def _write_pool_statuses(
        self, observed: ObservedJob, plan: JobPlan, versions: dict[str, str]
    ) -> None:
        by_name = {pool["metadata"]["name"]: pool for pool in observed.pools}
        for name, status in plan.pool_statuses.items():
            pool = by_name.get(name)
            if pool is None:
                continue
            version = versions.get(f"{ROLLOUT_POOLS.kind}/{name}", "")
            await self._write_status(pool, status, version)

    # --- pods ----------------------------------------------------------------------------------

    async def _to_pods(self, writes: Iterable[Awaitable[None]]) -> None:
        """Some at once; raises the first error when all have been tried."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(write: Awaitable[None]) -> None:
            async with limit:
                await write

        results = await asyncio.gather(*(one(write) for write in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _set_cost(self, key: Key, cost: DeletionCost) -> None:
        """A scale-down goes on without, if it must."""
        try:
            await self._client.set_pod_annotation(
                namespace=key[0], name=cost.pod, uid=cost.uid, key=labels.DELETION_COST,
                value=cost.cost,
            )  # fmt: skip
        except (NotFoundError, ConflictError):
            log.debug("Pod %s is gone; it needs no deletion cost", cost.pod)
        except RefusedError as error:
            log.warning("ObjectDeletion cost of pod %s refused: %s", cost.pod, error.message)

    async def _remove(self, key: Key, removal: PodDeletion) -> None:
        log.info("Deleting pod %s%s", removal.pod, " by force" if removal.force else "")
        grace = 0 if removal.force else None
        try:
            await self._client.delete(
                PODS, namespace=key[0], name=removal.pod, uid=removal.uid, grace=grace
            )
        except ConflictError:
            log.debug("Pod %s is another one by now", removal.pod)
        except RefusedError as error:
            log.warning("ObjectDeletion of pod %s refused: %s", removal.pod, error.message)

    async def _set_gate(self, key: Key, gate: ReadinessGatePatch) -> None:
        condition = {
            "type": READINESS_GATE,
            "status": "True" if gate.in_sync else "False",
            "reason": gate.reason,
            "message": gate.message,
            "lastTransitionTime": self._timestamp(),
        }
        try:
            await self._client.set_pod_condition(
                namespace=key[0], name=gate.pod, uid=gate.uid, condition=condition
            )
        except (NotFoundError, ConflictError):
            log.debug("Pod %s is gone; its gate needs no patch", gate.pod)

    def _look_again(self, observed: ObservedJob, plan: JobPlan, state: JobState) -> float | None:
        reasons = [plan.requeue_after] if plan.requeue_after is not None else []
        there = {pool["metadata"]["name"] for pool in observed.pools}
        pools = [b["metadata"]["name"] for b in plan.applies if b["kind"] == ROLLOUT_POOLS.kind]
        if not there.issuperset(pools):
            reasons.append(0.0)  # a new pool's Deployment needs the uid that the pool has now
        if any(
            child.refusal != observed.refusals.get(name) for name, child in state.refused.items()
        ):
            reasons.append(0.0)  # to say so in a condition
        now = self._clock()
        reasons += [max(0.1, child.retry_at - now) for child in state.refused.values()]
        return min(reasons) if reasons else None


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


def _retry_delay(attempts: int) -> float:
    return min(_FIRST_RETRY * 2.0 ** min(attempts - 1, 10), _LAST_RETRY)
