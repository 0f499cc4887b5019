"""The operator's own parts, put together as in its process; its watches lag behind at will."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from rollcall_operator.control.apply import Applier
from rollcall_operator.control.job_reader import JobReader
from rollcall_operator.control.job_store import CHILDREN, KINDS, JobStore
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.control.object_watches import ObjectWatches
from rollcall_operator.control.reconciler import RESYNC_SECONDS, JobState, Reconciler
from rollcall_operator.control.work_queue import RetryError
from rollcall_operator.kube.resources import PODS, RL_JOBS, ROLLOUT_POOLS, Resource
from rollcall_operator.plan.model import JobKey, LinkFacts, ObservedJob, PolicyPeers
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.timestamps import to_time
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_protocol.wire.roster import Roster
from tests.unit.rollcall_operator.control.api_server_stand_in import merged
from tests.unit.rollcall_operator.plan.simulator import JOB, NAMESPACE, TRUST

if TYPE_CHECKING:
    from rollcall_operator.control.job_certificates import JobCertificates
    from rollcall_operator.control.operator_tokens import OperatorTokens
    from rollcall_operator.control.trust_keys import TrustKeys
    from rollcall_operator.kube.client import KubeClient
    from rollcall_operator.kube.event_recorder import EventRecorder
    from rollcall_operator.kube.pod_dialer import PodDialer
    from rollcall_protocol.wire.job_snapshot import JobSnapshot
    from tests.unit.rollcall_operator.control.lagging_cluster import LaggingCluster

KEY = (NAMESPACE, JOB)
NEVER = float("inf")


class Link:
    """The operator's link to the coordinator: gets rosters, and has the last report."""

    def __init__(self, cluster: "LaggingCluster") -> None:
        self._cluster = cluster
        self.snapshot: JobSnapshot | None = None

    @property
    def facts(self) -> LinkFacts:
        return LinkFacts(connected=True, since=self._cluster.now)

    def set_roster(self, roster: Roster | None) -> None:
        if roster is not None:
            self._cluster.take_roster(roster)

    async def close(self) -> None: ...


class LinkedReconciler(Reconciler):
    """Its link needs no connection."""

    link: Link
    seen: ObservedJob

    async def _relink(self, key: JobKey, state: JobState, observed: ObservedJob) -> None:
        del key, observed
        state.link = cast("Any", self.link)

    async def _observe(self, key: JobKey, state: JobState) -> ObservedJob:
        self.seen = await super()._observe(key, state)
        return self.seen


class Operator:
    """One process: it has listed everything, and gets later events by `deliver`."""

    def __init__(self, cluster: "LaggingCluster") -> None:
        self._cluster, objects = cluster, cluster.objects
        self.store = JobStore()
        self.at = {plural: len(events) for plural, events in objects.history.items()}
        self._watches = ObjectWatches(
            cast("KubeClient", None),
            store=self.store,
            namespaces=(),
            enqueue=lambda _key, _delay: self.ask(),
            seen=lambda _plural: None,
            node_seen=None,
            clock=lambda: cluster.now,
        )
        self.writes = self._watches.writes
        for resource in KINDS:
            watch = self._watches._watch(resource.plural, NAMESPACE)
            for body in objects.of(resource):
                watch._take(body)
            watch.reached = objects.revision
        reader = JobReader(
            cast("KubeClient", cluster.client),
            store=self.store,
            writes=self.writes,
            lost_for=lambda: 0.0,
            clock=lambda: cluster.now,
        )
        nothing = SimpleNamespace(
            current=TRUST,
            record=lambda *_, **__: None,
            forget=lambda _: None,
            authority="",
            make=_no,
        )
        applier = Applier(
            cast("KubeClient", cluster.client),
            cast("EventRecorder", nothing),
            self.writes,
            timestamp=lambda: to_time(cluster.now),
            clock=lambda: cluster.now,
        )
        self._asked, self._due = True, cluster.now
        self.link = Link(cluster)
        self.reconciler = LinkedReconciler(
            reader=reader,
            applier=applier,
            writes=self.writes,
            nodes=NodeWatch(taints=(), enqueue=lambda _: None),
            dialer=cast("PodDialer", None),
            tokens=cast("OperatorTokens", nothing),
            keys=cast("TrustKeys", nothing),
            certificates=cast("JobCertificates", nothing),
            policy_peers=PolicyPeers(),
            worker_user=None,
            metrics=OperatorMetrics(),
            enqueue=lambda *_: None,
        )
        self.reconciler.link = self.link

    def deliver(self, resource: Resource, most: int) -> None:
        """The watch of a kind reports so many of its next events."""
        events = self._cluster.objects.history[resource.plural]
        watch = self._watches._watch(resource.plural, NAMESPACE)
        for revision, before, now in events[self.at[resource.plural] :][:most]:
            self.at[resource.plural] += 1
            gone = merged(before or {}, {"metadata": {"resourceVersion": str(revision)}})
            watch._event("MODIFIED" if now is not None else "DELETED", now or gone)

    def deliver_all(self) -> None:
        """All watches catch up."""
        for resource in KINDS:
            self.deliver(resource, 1_000_000)

    async def reconcile(self) -> None:
        """Once; what passes is tried again another time."""
        self._asked, self._due = False, self._cluster.now
        try:
            again = await self.reconciler(KEY)
        except RetryError:
            return
        self._due += NEVER if again is None or again > RESYNC_SECONDS / 2 else again

    def ask(self) -> None:
        """The coordinator has reported something."""
        self._asked = True

    async def reconcile_if_asked(self) -> None:
        """Only if an event or the last reconcile asks for it."""
        if self._asked or self._cluster.now >= self._due:
            await self.reconcile()

    def live(self) -> ObservedJob:
        """What it would plan from if its store lagged behind nothing."""
        objects = self._cluster.objects
        state = self.reconciler._states.get(KEY, JobState())
        return ObservedJob(
            namespace=NAMESPACE,
            name=JOB,
            now=self._cluster.now,
            job=objects.find(RL_JOBS, JOB),
            pools=tuple(objects.of(ROLLOUT_POOLS)),
            children=tuple(objects.of(*CHILDREN)),
            trust=TRUST,
            policy_peers=PolicyPeers(),
            pods=tuple(map(pod_facts, objects.of(PODS))),
            snapshot=self.link.snapshot,
            link=self.link.facts,
            memory=state.memory,
        )


async def _no(_observed: ObservedJob) -> str:
    return ""
