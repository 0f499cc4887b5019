"""One job on a stand-in for an API server, with an operator whose watches lag behind at will.

The operator's own parts run: reader, store, planner and applier. The controllers of Kubernetes, the
kubelet and the coordinator do here what they are asked to, and look at what there really is.
"""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from rollcall_operator.api import labels
from rollcall_operator.control.apply import Applier
from rollcall_operator.control.job_reader import JobReader
from rollcall_operator.control.job_state import JobState, Key
from rollcall_operator.control.job_store import CHILDREN, KINDS, JobStore, Kept, keep
from rollcall_operator.control.node_watch import NodeWatch
from rollcall_operator.control.object_watches import is_news
from rollcall_operator.control.own_writes import OwnWrites
from rollcall_operator.control.reconciler import RESYNC_SECONDS, Reconciler
from rollcall_operator.control.work_queue import RetryError
from rollcall_operator.kube.errors import ConflictError, NotFoundError, UnreachableError
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
    resource_of,
)
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import JobPlan, LinkFacts, ObservedJob, PodFacts, PolicyPeers
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.timestamps import to_time
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_protocol.pod_contract import READINESS_GATE
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState, TrainingProgress
from rollcall_protocol.wire.roster import Roster
from tests.integration.bad_manifests.manifests import changed
from tests.unit.rollcall_operator.plan.coordinator_snapshots import snapshot_of
from tests.unit.rollcall_operator.plan.simulator import (
    JOB,
    NAMESPACE,
    START,
    TRUST,
    good_job,
    revision_of,
    writes_anything,
)

if TYPE_CHECKING:
    from rollcall_operator.control.job_certificates import JobCertificates
    from rollcall_operator.control.operator_tokens import OperatorTokens
    from rollcall_operator.control.trust_keys import TrustKeys
    from rollcall_operator.kube.client import KubeClient
    from rollcall_operator.kube.event_recorder import EventRecorder
    from rollcall_operator.kube.pod_dialer import PodDialer

KEY = (NAMESPACE, JOB)
POOL = f"{JOB}-cpu"
REPLICAS = 4
NEVER = float("inf")
SPEC = {"spec.rollouts[0].replicas": REPLICAS, "spec.membership": {"replaceAfterSeconds": 30}}
Object = dict[str, Any]
Event = tuple[int, Object | None, Object | None]
"""The revision, and the object before and after."""


def refusal(kind: type[Any], status: int) -> Any:
    return kind(status=status, reason="", message="", what="write")


class Objects:
    """Objects with revisions, and what happened to each kind in its order."""

    def __init__(self) -> None:
        self.revision = 1
        self.there: dict[tuple[str, str], Object] = {}
        self.history: dict[str, list[Event]] = {resource.plural: [] for resource in KINDS}
        self._uids = 0

    def of(self, *resources: Resource) -> list[Object]:
        """All objects of these kinds, by name."""
        wanted = {resource.plural for resource in resources}
        return [each for (plural, _), each in sorted(self.there.items()) if plural in wanted]

    def find(self, resource: Resource, name: str) -> Object | None:
        return self.there.get((resource.plural, name))

    def put(self, resource: Resource, body: Object) -> Object:
        """Create or replace; the same content again has no effect."""
        name = body["metadata"]["name"]
        before = self.find(resource, name)
        kept = copy.deepcopy(body)
        kept |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if before is None:
            self._uids += 1
            fresh = {"uid": f"uid-{self._uids}", "generation": 1}
            kept["metadata"] = {"creationTimestamp": to_time(START), **kept["metadata"], **fresh}
        elif kept == before:
            return copy.deepcopy(before)
        elif kept.get("spec") != before.get("spec"):
            kept["metadata"]["generation"] = before["metadata"]["generation"] + 1
        self.revision += 1
        kept["metadata"]["resourceVersion"] = str(self.revision)
        self._happened(resource, name, before, kept)
        return copy.deepcopy(kept)

    def drop(self, resource: Resource, name: str) -> None:
        """Delete at once."""
        self.revision += 1
        self._happened(resource, name, self.there[resource.plural, name], None)

    def _happened(
        self, resource: Resource, name: str, before: Object | None, now: Object | None
    ) -> None:
        if now is None:
            del self.there[resource.plural, name]
        else:
            self.there[resource.plural, name] = now
        if resource.plural in self.history:
            self.history[resource.plural].append((self.revision, before, now))


class Client:
    """The operator's client. The next write fails before or after its effect if `fails` says so."""

    def __init__(self, cluster: "LaggingCluster") -> None:
        self._cluster, self._objects = cluster, cluster.objects
        self.fails = ""

    async def find(self, resource: Resource, *, namespace: str, name: str) -> Object | None:
        assert namespace == NAMESPACE
        return copy.deepcopy(self._objects.find(resource, name))

    async def list(
        self, resource: Resource, *, namespace: str, **_selectors: str
    ) -> tuple[Object, ...]:
        """All, as all are the job's."""
        assert namespace == NAMESPACE
        if resource.plural == "events":
            return ()
        return tuple(copy.deepcopy(self._objects.of(resource)))

    async def apply(self, body: Object, *, force: bool, dry_run: bool = False) -> Object:
        assert not dry_run
        del force  # no other client sets fields of the job's objects
        resource = resource_of(body["kind"])
        before = self._objects.find(resource, body["metadata"]["name"])
        wanted = body["metadata"].get("resourceVersion")
        if wanted and (before is None or wanted != before["metadata"]["resourceVersion"]):
            raise refusal(ConflictError, 409)
        if before is None:
            self._cluster.created[apply_needed.key(body)] += 1
        return self._write(lambda: self._objects.put(resource, _merged(before or {}, body)))

    async def patch_status(
        self, resource: Resource, *, namespace: str, name: str, patch: Object, resource_version: str
    ) -> Object:
        assert namespace == NAMESPACE
        live = self._must_find(resource, name)
        if resource_version != live["metadata"]["resourceVersion"]:
            raise refusal(ConflictError, 409)
        written = _merged(live, {"status": patch})
        if resource == RL_JOBS:
            self._cluster.check_status(live.get("status") or {}, written["status"])
        return self._write(lambda: self._objects.put(resource, written))

    async def set_pod_condition(
        self, *, namespace: str, name: str, uid: str, condition: Object
    ) -> Object:
        assert namespace == NAMESPACE
        pod = self._pod(name, uid)
        same = {"lastTransitionTime": None}  # a second write with another time changes nothing
        return self._write(lambda: self._objects.put(PODS, _with_conditions(pod, condition | same)))

    async def set_pod_annotation(
        self, *, namespace: str, name: str, uid: str, key: str, value: str | None
    ) -> Object:
        assert namespace == NAMESPACE
        patch = {"metadata": {"annotations": {key: value}}}
        return self._write(lambda: self._objects.put(PODS, _merged(self._pod(name, uid), patch)))

    async def delete(
        self,
        resource: Resource,
        *,
        namespace: str,
        name: str,
        uid: str,
        version: str = "",
        grace: int | None = None,
    ) -> None:
        assert (namespace, grace) == (NAMESPACE, None)
        live = self._objects.find(resource, name)
        if live is None:
            return
        same = version in {"", live["metadata"]["resourceVersion"]}
        if live["metadata"]["uid"] != uid or not same:
            raise refusal(ConflictError, 409)
        self._cluster.check_deletion(uid)
        at = live["metadata"].get("deletionTimestamp") or to_time(self._cluster.now + 30)
        going = _merged(live, {"metadata": {"deletionTimestamp": at}})
        self._write(lambda: self._objects.put(resource, going))

    def _write(self, effect: Callable[[], Object]) -> Object:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise UnreachableError("no connection")
        before = self._objects.revision
        result = effect()
        assert self._objects.revision > before, "it was written already"
        if fails == "after":
            raise UnreachableError("the connection was lost")
        return result

    def _must_find(self, resource: Resource, name: str) -> Object:
        found = self._objects.find(resource, name)
        if found is None:
            raise refusal(NotFoundError, 404)
        return found

    def _pod(self, name: str, uid: str) -> Object:
        pod = self._must_find(PODS, name)
        if pod["metadata"]["uid"] != uid:
            raise refusal(ConflictError, 409)
        return pod


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

    async def _relink(self, key: Key, state: JobState, observed: ObservedJob) -> None:
        del key, observed
        state.link = cast("Any", self.link)

    async def _observe(self, key: Key, state: JobState) -> ObservedJob:
        self.seen = await super()._observe(key, state)
        return self.seen


class Operator:
    """One process: it has listed everything, and gets later events by `deliver`."""

    def __init__(self, cluster: "LaggingCluster") -> None:
        self._cluster, objects = cluster, cluster.objects
        self.store = JobStore()
        self.at = {plural: len(events) for plural, events in objects.history.items()}
        self._reached = dict.fromkeys(objects.history, objects.revision)
        for resource in KINDS:
            for body in objects.of(resource):
                self.store.change(None, keep(resource, body))
        self.writes = OwnWrites(
            reached=lambda plural, _namespace: self._reached[plural],
            lives=self.store.lives,
            clock=lambda: cluster.now,
        )
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
        for revision, before, now in events[self.at[resource.plural] :][:most]:
            self.at[resource.plural] += 1
            was, kept = _kept(resource, before), _kept(resource, now)
            self.store.change(was, kept)
            self._asked = self._asked or is_news(KEY, was, kept, self.writes)
            self._reached[resource.plural] = revision

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


class LaggingCluster:
    """The objects of one job, its operator, and what must never happen."""

    def __init__(self) -> None:
        self.now = START
        self.objects = Objects()
        self.created: Counter[str] = Counter()
        self.deleted: set[str] = set()
        self.left: set[str] = set()
        self.client = Client(self)
        self.rosters: dict[int, str] = {}
        self.roster: Roster | None = None
        self.steps = 0
        self.objects.put(RL_JOBS, good_job(SPEC))
        self.operator = Operator(self)

    def restart_operator(self) -> None:
        """Another process, which lists everything and remembers nothing."""
        self.operator = Operator(self)

    # --- what must never happen ------------------------------------------------------------------

    def check_status(self, before: Object, now: Object) -> None:
        """No status goes back."""
        for field in ("epoch", "observedGeneration"):
            assert now.get(field, 0) >= before.get(field, 0), field
        steps = [(status.get("progress") or {}).get("step", 0) for status in (before, now)]
        assert steps[0] <= steps[1], "a step"

    def check_deletion(self, uid: str) -> None:
        """It would also be deleted if the operator knew what it deleted before, and all of it."""
        seen = self.operator.reconciler.seen
        live = {pod.uid: pod for pod in map(pod_facts, self.objects.of(PODS))}
        known = {uid, *self.deleted}
        pods = [live.get(pod.uid) if pod.uid in known else pod for pod in seen.pods]
        plan = make_plan(replace(seen, pods=tuple(pod for pod in pods if pod is not None)))
        planned = {each.uid for each in plan.pod_deletions} | {each.uid for each in plan.deletes}
        assert uid in planned, "a pod or object that is wanted was deleted"
        self.deleted.add(uid)

    def take_roster(self, roster: Roster) -> None:
        """An epoch is handed out once it is in status, is one roster for ever, and loses none that
        run and whose pool stays.
        """
        job = self.objects.find(RL_JOBS, JOB)
        assert job is not None
        assert job["status"]["epoch"] >= roster.epoch, "handed out before it was in status"
        assert self.rosters.setdefault(roster.epoch, roster.digest) == roster.digest, "used again"
        assert not self.left & {m.pod_uid for m in roster.members}, "who has left has come back"
        if self.roster is not None and roster.epoch > self.roster.epoch:
            left = {m.pod_uid for m in self.roster.members} - {m.pod_uid for m in roster.members}
            running = {
                pod.uid
                for pod in self._rollouts()
                if pod.phase == "Running" and not pod.terminating and self._stays(pod.pool)
            }
            self.left |= left
            suspended = job["spec"].get("suspend")
            assert suspended or not left & running, "a rollout that runs has lost its seat"
        if self.roster is None or roster.epoch >= self.roster.epoch:
            self.roster = roster

    def _stays(self, pool: str) -> bool:
        """Whether the pool is there and not being deleted, now and when the operator looked."""
        live = self.objects.find(ROLLOUT_POOLS, pool)
        seen = [p for p in self.operator.reconciler.seen.pools if p["metadata"]["name"] == pool]
        return live is not None and all(
            "deletionTimestamp" not in each["metadata"] for each in (live, *seen)
        )

    def _rollouts(self) -> list[PodFacts]:
        return [pod for pod in map(pod_facts, self.objects.of(PODS)) if pod.role == labels.ROLLOUT]

    # --- Kubernetes ------------------------------------------------------------------------------

    def controllers(self) -> None:
        """StatefulSets and Deployments have as many pods as they ask for."""
        for resource in (STATEFUL_SETS, DEPLOYMENTS):
            for owner in self.objects.of(resource):
                self._scale(resource, owner)

    def _scale(self, resource: Resource, owner: Object) -> None:
        wanted, name = owner["spec"]["replicas"], owner["metadata"]["name"]
        own = [
            pod
            for pod in self.objects.of(PODS)
            if pod["metadata"]["ownerReferences"][0]["name"] == name
        ]
        for pod in [p for p in own if p.get("status", {}).get("phase") == "Failed"]:
            self.objects.drop(PODS, pod["metadata"]["name"])
            own.remove(pod)
        for pod in own[wanted:]:
            self.objects.drop(PODS, pod["metadata"]["name"])
        staying = [pod for pod in own[:wanted] if "deletionTimestamp" not in pod["metadata"]]
        names = {pod["metadata"]["name"] for pod in own}
        ordinals = (f"{name}-{number}" for number in range(100))
        fresh = [each for each in ordinals if each not in names][: wanted - len(staying)]
        for each in fresh if resource == DEPLOYMENTS or len(own) < wanted else ():
            self._make_pod(owner, each)
        status = {
            "replicas": wanted,
            "observedGeneration": owner["metadata"]["generation"],
            "updateRevision": revision_of(owner),
        }
        self.objects.put(resource, _merged(owner, {"status": status}))

    def _make_pod(self, owner: Object, name: str) -> None:
        template = copy.deepcopy(owner["spec"]["template"])
        metadata = template["metadata"]
        metadata["labels"]["controller-revision-hash"] = revision_of(owner)
        metadata |= {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": to_time(self.now),
            "ownerReferences": [{"name": owner["metadata"]["name"]}],
        }
        self.objects.put(PODS, template)

    def kubelet(self) -> None:
        """Starts the containers of all pods, and has let go those that were to end."""
        for pod in self.objects.of(PODS):
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                self.objects.drop(PODS, name)
            elif pod.get("status", {}).get("phase") != "Failed":
                self.objects.put(PODS, self._running(pod))

    def _running(self, pod: Object) -> Object:
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": to_time(START)}},
        }
        number = pod["metadata"]["uid"].rpartition("-")[2]
        status = {
            "phase": "Running",
            "podIP": f"10.0.0.{number}",
            "containerStatuses": [container],
        }
        conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", ())}
        gated = bool(pod["spec"].get("readinessGates"))
        ready = "False" if gated and conditions.get(READINESS_GATE) != "True" else "True"
        return _with_conditions(
            _merged(pod, {"status": status}),
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": ready},
        )

    def fail(self, number: int) -> None:
        """A rollout's node evicts it."""
        rollouts = self._rollouts()
        if rollouts:
            name = rollouts[number % len(rollouts)].name
            pod = self.objects.there[PODS.plural, name]
            self.objects.put(PODS, _merged(pod, {"status": {"phase": "Failed"}}))

    def collect(self) -> None:
        """What is being deleted, other than pods, goes, and with it what it owns."""
        for resource in (ROLLOUT_POOLS, *CHILDREN):
            for each in self.objects.of(resource):
                if "deletionTimestamp" in each["metadata"]:
                    self.objects.drop(resource, each["metadata"]["name"])

    def edit(self, resource: Resource, name: str, changes: Object) -> None:
        """A user's change; nothing where there is no such object yet."""
        found = self.objects.find(resource, name)
        if found is not None:
            self.objects.put(resource, changed(found, changes))

    # --- the coordinator -------------------------------------------------------------------------

    def report(self, *, absent: int = 0) -> None:
        """Rank 0, if it runs and has a roster, reports; so many of its members are absent."""
        self.steps += 1
        trainer = self.objects.find(PODS, labels.coordinator_pod(JOB))
        roster = self.roster
        if (
            trainer is None
            or roster is None
            or roster.coordinator_uid != trainer["metadata"]["uid"]
        ):
            return
        gone = {member.pod_uid: MemberState.SUSPECT for member in roster.members[:absent]}
        self.operator.link.snapshot = snapshot_of(
            roster,
            TrainingProgress(
                step=self.steps, max_steps=10_000, weight_version=self.steps, rollout_reward=0.5
            ),
            groups=["default"],
            states=gone,
        )
        self.operator.ask()

    # --- the end ---------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Faults stop and the watches catch up: the job must come to rest, by reconciles that
        something asks for.
        """
        self.client.fails = ""
        self.edit(RL_JOBS, JOB, {"spec.suspend": False})
        for _ in range(40):
            self.controllers()
            self.kubelet()
            self.collect()
            self.report()
            self.now += 11
            for _ in range(3):
                self.operator.deliver_all()
                await self.operator.reconcile_if_asked()
            self.operator.deliver_all()
            if self.at_rest():
                return
        raise AssertionError(f"it does not converge; it would go on with {self.plan()}")

    def at_rest(self) -> bool:
        """Whether all rollouts that should run have a seat, and nothing is left to be written."""
        if self.roster is None:
            return False
        running = {pod.uid for pod in self._rollouts() if pod.ready}
        return running == {m.pod_uid for m in self.roster.members} and not writes_anything(
            self.plan()
        )

    def plan(self) -> JobPlan:
        """What would be done now."""
        return make_plan(replace(self.operator.live(), now=self.now))


async def _no(_observed: ObservedJob) -> str:
    return ""


def _kept(resource: Resource, body: Object | None) -> Kept | None:
    return None if body is None else keep(resource, body)


def _with_conditions(pod: Object, *conditions: Object) -> Object:
    status = pod.get("status") or {}
    kept = {each["type"]: each for each in status.get("conditions") or ()}
    kept |= {each["type"]: each for each in conditions}
    return {**pod, "status": {**status, "conditions": list(kept.values())}}


def _merged(live: Object, patch: Object) -> Object:
    """A merge patch: dictionaries are merged, null removes, all else is replaced."""
    merged = copy.deepcopy(live)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            inner = merged.get(name)
            merged[name] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged
