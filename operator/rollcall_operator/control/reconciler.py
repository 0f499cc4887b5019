"""One reconcile: read, plan, apply. Owns the jobs' states and their links."""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rollcall_operator.api import labels
from rollcall_operator.api.status import RLJobStatus
from rollcall_operator.control.apply import Applier, Versions
from rollcall_operator.control.coordinator_link import CoordinatorLink, LinkMetrics, LinkSettings
from rollcall_operator.control.job_certificates import JobCertificates
from rollcall_operator.control.job_reader import BehindError, JobReader
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.control.operator_tokens import JobCredentials, OperatorTokens
from rollcall_operator.control.own_writes import OwnWrites
from rollcall_operator.control.policy_probe import PolicyProbe
from rollcall_operator.control.trust_keys import TrustKeys
from rollcall_operator.control.work_queue import RetryError
from rollcall_operator.kube.errors import (
    ConflictError,
    NotFoundError,
    ServerError,
    TerminatingError,
    ThrottledError,
    UnreachableError,
)
from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer
from rollcall_operator.plan.children.certificates import believed_authorities
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.job_view import find_coordinator
from rollcall_operator.plan.model import (
    NUMBERS_ONLY,
    JobKey,
    JobPlan,
    ObservedJob,
    PolicyPeers,
    ReconcileMemory,
)
from rollcall_operator.plan.status.coordinator_contact import silent_before
from rollcall_operator.plan.status.enforced_policies import can_be_tried
from rollcall_operator.telemetry.logs import log_fields
from rollcall_operator.telemetry.metrics import OperatorMetrics

log = logging.getLogger(__name__)

RESYNC_SECONDS = 600.0
"""Between reconciles of a job of which nothing is reported: each of its times asks for its own."""

SPREAD_SECONDS = 10.0
NUMBERS_PER_SECOND = 5.0
"""Jobs whose steps are written into their statuses in a second, at most."""

# NotFoundError: an object or its namespace was deleted since it was read.
_TRANSIENT = (ConflictError, NotFoundError, ServerError, ThrottledError, UnreachableError)


@dataclass(slots=True)
class JobState:
    """What the reconciler keeps of one job between reconciles: the planner's memory, the link to
    the coordinator, and the probe of its pod. All of it may be lost at any time.

    `uid` is the job's: another job of the same name starts with an empty memory. `pace` is a number
    about 1, by which what many jobs do is spread in time.
    """

    uid: str = ""
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
    link: CoordinatorLink | None = None
    probe: PolicyProbe | None = None
    pace: float = field(default_factory=lambda: random.uniform(0.75, 1.25))  # noqa: S311


class Reconciler:
    """Runs a key of the queue. `enqueue` is the queue's `add`, for links to ask for a reconcile."""

    def __init__(
        self,
        *,
        reader: JobReader,
        applier: Applier,
        writes: OwnWrites,
        nodes: NodeWatch,
        dialer: PodDialer,
        tokens: OperatorTokens,
        keys: TrustKeys,
        certificates: JobCertificates,
        policy_peers: PolicyPeers,
        worker_user: int | None,
        metrics: OperatorMetrics,
        enqueue: Callable[[JobKey, float], None],
        link_settings: LinkSettings | None = None,
    ) -> None:
        self._reader = reader
        self._applier = applier
        self._writes = writes
        self._nodes = nodes
        self._dialer = dialer
        self._tokens = tokens
        self._keys = keys
        self._certificates = certificates
        self._policy_peers = policy_peers
        self._worker_user = worker_user
        self._metrics = metrics
        self._enqueue = enqueue
        self._link_settings = link_settings or LinkSettings()
        self._states: dict[JobKey, JobState] = {}
        self._links = 0

    async def __call__(self, key: JobKey) -> float | None:
        """Reconcile one job; returns seconds until the next reconcile, None when it is gone.

        Raises RetryError for what passes by itself.
        """
        with log_fields(namespace=key[0], job=key[1]):
            try:
                return await self._reconcile(key)
            except TerminatingError:
                log.debug("The namespace is being deleted")
                return RESYNC_SECONDS
            except BehindError as behind:
                return behind.wait  # the event that the store lacks comes sooner
            except _TRANSIENT as error:
                raise RetryError(str(error)) from error

    def reconcile_all(self) -> None:
        """Have each job reconciled within SPREAD_SECONDS: what all depend on has changed."""
        for key in self._states:
            self._enqueue(key, random.uniform(0, SPREAD_SECONDS))  # noqa: S311 - spreads load

    async def close(self) -> None:
        """Close the connections to all coordinators, and forget the jobs."""
        for state in self._states.values():
            await self._close_link(state)
        self._states.clear()

    async def _reconcile(self, key: JobKey) -> float | None:
        state = self._states.setdefault(key, JobState())
        await self._applier.retry_refused(key)
        observed = await self._observe(key, state)
        plan = make_plan(observed)
        with log_fields(epoch=_epoch(plan)), self._writes.writing(key):
            versions = await self._write(key, state, observed, plan)
        if observed.gone:
            await self._forget(key, state)
            return None
        self._count(key, observed, plan)
        resync = RESYNC_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads resyncs
        again = self._applier.next_reconcile(observed, plan, versions)
        return resync if again is None else min(again, resync)

    async def _write(
        self, key: JobKey, state: JobState, observed: ObservedJob, plan: JobPlan
    ) -> Versions:
        try:
            versions = await self._applier.write_objects(observed, plan)
            # Only now is the epoch in status, and may be remembered and handed out.
            state.memory = plan.memory
            if state.link is not None:
                state.link.set_roster(plan.roster)
            await self._applier.write_pods_and_pools(observed, plan, versions)
        except BaseException:  # also when it is cancelled: a request may have had its effect
            self._writes.doubt(key)
            raise
        return versions

    async def _observe(self, key: JobKey, state: JobState) -> ObservedJob:
        """What the API server holds, with what the operator itself knows of the job."""
        observed = await self._reader.read(key)
        if observed.job_uid != state.uid:
            self._tokens.forget(state.uid)
            state.uid, state.memory = observed.job_uid, ReconcileMemory()
            self._applier.forget(key)
        refused = await self._certificates.make(observed)
        await self._relink(key, state, observed)
        if state.probe is not None:
            state.probe.want(can_be_tried(observed))
        nodes = {pod.node for pod in observed.pods}
        self._nodes.subscribe(key, nodes)
        return replace(
            observed,
            snapshot=state.link.snapshot if state.link is not None else None,
            link=state.link.facts if state.link is not None else None,
            memory=state.memory,
            trust=self._keys.current,
            authority=self._certificates.authority,
            certificates_refused=refused,
            policy_peers=self._policy_peers,
            policies_enforced=state.probe.enforced if state.probe is not None else None,
            worker_user=self._worker_user,
            refusals=self._applier.refusals(key),
            nodes=self._nodes.troubled(nodes),
            numbers_every=self._numbers_every(state),
        )

    async def _relink(self, key: JobKey, state: JobState, observed: ObservedJob) -> None:
        """Have a link to the pod that is the coordinator now, and to no other."""
        pod, job, link = find_coordinator(observed), observed.job, state.link
        if pod is None or job is None:
            await self._close_link(state)
            return
        address = PodAddress(
            namespace=observed.namespace,
            name=pod.name,
            uid=pod.uid,
            ip=pod.ip,
            host=labels.coordinator_host(observed.name, observed.namespace),
            authorities=believed_authorities(job, observed.children, self._certificates.authority),
        )
        if link is not None and link.serves(address):
            link.retry_now()
            return
        await self._close_link(state)
        metrics: LinkMetrics = self._metrics
        self._links += 1
        link = state.link = CoordinatorLink(
            pod=address,
            credentials=JobCredentials(self._tokens, self._keys, job_uid=observed.job_uid),
            dialer=self._dialer,
            notify=lambda delay: self._enqueue(key, delay),
            progressed=lambda: self._enqueue(key, self._numbers_every(state)),
            metrics=metrics,
            silent=silent_before(RLJobStatus.read(job.get("status")), pod),
            settings=self._link_settings,
        )
        link.start()
        if self._dialer.direct:
            state.probe = PolicyProbe(
                address=address.ip,
                connected=lambda: link.facts.connected,
                notify=lambda delay: self._enqueue(key, delay),
            )

    def _numbers_every(self, state: JobState) -> float:
        """Seconds between two writes of a status in which only numbers change: with many jobs that
        train, they are written less often, so that their sum stays bounded. Each has a pace of its
        own, as all would be due at once after a restart of the operator.
        """
        return max(NUMBERS_ONLY, state.pace * self._links / NUMBERS_PER_SECOND)

    async def _close_link(self, state: JobState) -> None:
        link, state.link = state.link, None
        probe, state.probe = state.probe, None
        if probe is not None:
            await probe.close()
        if link is not None:
            self._links -= 1
            await link.close()

    def _count(self, key: JobKey, observed: ObservedJob, plan: JobPlan) -> None:
        if observed.job is None:
            self._metrics.jobs.forget(key)
            return
        status = plan.job_status or observed.job.get("status")
        self._metrics.jobs.update(key, RLJobStatus.read(status), snapshot=observed.snapshot)

    async def _forget(self, key: JobKey, state: JobState) -> None:
        await self._close_link(state)
        self._tokens.forget(state.uid)
        self._states.pop(key, None)
        self._applier.forget(key)
        self._writes.forget(key)
        self._certificates.forget(key)
        self._nodes.forget(key)
        self._metrics.jobs.forget(key)


def _epoch(plan: JobPlan) -> int | None:
    return plan.roster.epoch if plan.roster is not None else None
