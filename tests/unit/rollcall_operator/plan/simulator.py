"""Simulates a cluster for plans: keeps what a plan writes; pods and the coordinator can act.

It is no API server: it only feeds a plan's own output back as the next observation.
"""

import copy
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.kube.resources import DEPLOYMENTS
from rollcall_operator.plan import apply_needed
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import (
    JobPlan,
    LinkFacts,
    Manifest,
    NodeFacts,
    ObjectDeletion,
    ObservedJob,
    PodFacts,
    ReconcileMemory,
    Refusal,
)
from rollcall_operator.plan.status.job import more_than_progress
from rollcall_protocol.wire.job_snapshot import (
    JobSnapshot,
    MemberState,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.learning import LearningReport
from rollcall_protocol.wire.trust_bundle import TrustBundle
from tests.apiserver.bad_manifests.manifests import Changes, changed, job, pool
from tests.unit.rollcall_operator.plan.coordinator_snapshots import snapshot_of

if TYPE_CHECKING:
    from rollcall_protocol.wire.roster import Roster

NAMESPACE, JOB, START = "team", "bad", 1_800_000_000.0


def good_job(changes: Changes | None = None) -> Manifest:
    """An RLJob as the API server stores it: two rollouts, all defaults filled in."""
    body = changed(job(), {"spec.rollouts[0].replicas": 2})
    body = changed(body, changes or {})
    body["spec"] = RLJobSpec.model_validate(body["spec"]).model_dump(
        by_alias=True, exclude_none=True
    )
    body["metadata"] |= {"namespace": NAMESPACE, "uid": "job-uid", "generation": 1}
    return body


def lent_pool(changes: Changes | None = None) -> Manifest:
    """A RolloutPool for that job which the job does not own."""
    body = changed(pool(), {"metadata.name": "lent", **(changes or {})})
    body["spec"] = RolloutPoolSpec.model_validate(body["spec"]).model_dump(
        by_alias=True, exclude_none=True
    )
    body["metadata"] |= {"namespace": NAMESPACE, "uid": "lent-uid", "generation": 1}
    body["metadata"]["resourceVersion"] = "1"
    return body


TRUST = TrustBundle("https://cluster", "system:serviceaccount:s:operator", ({"kid": "a"},))


def writes_anything(plan: JobPlan) -> bool:
    """Whether carrying the plan out would send a request to the API server."""
    written = (plan.costs, plan.pod_deletions, plan.applies, plan.deletes)
    return any((*written, plan.job_status, plan.pool_statuses, plan.gates, plan.events))


def revision_of(stateful_set: Manifest) -> str:
    """Of the pods that it makes now."""
    return apply_needed.digest({"metadata": {}, "spec": stateful_set["spec"]["template"]})


class JobSimulator:
    """One job with its children, pods and coordinator."""

    def __init__(self, changes: Changes | None = None) -> None:
        self.job: Manifest | None = good_job(changes)
        self.pools: dict[str, Manifest] = {}
        self.children: dict[str, Manifest] = {}
        self.pods: dict[str, PodFacts] = {}
        self.trust: TrustBundle | None = TRUST
        self.authority = ""
        self.policies_enforced: bool | None = None
        self.worker_user: int | None = None
        self.snapshot: JobSnapshot | None = None
        self.link: LinkFacts | None = None  # None: it reports as soon as there is a snapshot
        self.memory = ReconcileMemory()
        self.refusals: dict[str, Refusal] = {}
        self.nodes: dict[str, NodeFacts] = {}
        self.creation_failures: dict[str, str] = {}
        self.roster: Roster | None = None
        self.now = START
        self.writes: Counter[str] = Counter()
        self.plans: list[JobPlan] = []
        self._uid = 0

    # --- reconciles ----------------------------------------------------------------------------

    def observed(self) -> ObservedJob:
        """What a reconcile would read now."""
        return ObservedJob(
            namespace=NAMESPACE,
            name=JOB,
            now=self.now,
            job=copy.deepcopy(self.job),
            pools=tuple(copy.deepcopy(list(self.pools.values()))),
            children=tuple(copy.deepcopy(list(self.children.values()))),
            trust=self.trust,
            authority=self.authority,
            policies_enforced=self.policies_enforced,
            worker_user=self.worker_user,
            pods=tuple(self.pods.values()),
            snapshot=self.snapshot,
            link=self.link or (LinkFacts(True, self.now) if self.snapshot else None),
            memory=self.memory,
            refusals=self.refusals,
            nodes=self.nodes,
            creation_failures=self.creation_failures,
            contents=self._contents(),
        )

    def _contents(self) -> frozenset[bytes]:
        """Of all but pods, without what a status or a resourceVersion says."""
        there = [self.job, *self.pools.values(), *self.children.values()]
        return frozenset(_content(body) for body in there if body is not None)

    def reconcile(self, seconds: float = 0.0) -> JobPlan:
        """Let time pass, plan, and keep what the plan writes.

        What is remembered of children that were settled must not change the plan. Where the
        applier asks for no other plan after it, another one must write nothing.
        """
        self.now += seconds
        self._sync_pods()
        observed = self.observed()
        plan = make_plan(observed)
        assert _without_memory(plan) == _without_memory(make_plan(replace(observed, contents=None)))
        self.plans.append(plan)
        self._keep(plan)
        status = (observed.job or {}).get("status") or {}
        followed = plan.job_status is not None and more_than_progress(status, plan.job_status)
        followed |= any(body["kind"] != DEPLOYMENTS.kind for body in plan.applies)
        if not (followed or plan.deletes or plan.pod_deletions):
            again = make_plan(self.observed())
            assert not writes_anything(again)
        return plan

    def converge(self, seconds: float = 0.0, most: int = 10) -> JobPlan:
        """Reconcile until nothing is written; returns the last plan that wrote something."""
        last = self.reconcile(seconds)
        for _ in range(most):
            plan = self.reconcile()
            if not writes_anything(plan):
                return last
            last = plan
        raise AssertionError("does not converge")

    def _keep(self, plan: JobPlan) -> None:
        for body in plan.applies:
            self.writes[body["kind"]] += 1
            self._store(body)
        for gone in plan.deletes:
            self._delete(gone)
        if plan.job_status is not None and self.job is not None:
            self.writes["job status"] += 1
            self.job["status"] = copy.deepcopy(plan.job_status)
        self.memory = plan.memory
        for deletion in plan.pod_deletions:
            self.writes["pod"] += 1
            del self.pods[deletion.uid]
        for cost in plan.costs:
            self.writes["cost"] += 1
            self.change(self.pods[cost.uid], deletion_cost=cost.cost)
        for gate in plan.gates:
            self.writes["gate"] += 1
            if gate.uid in self.pods:
                pod, closed = self.pods[gate.uid], gate.reason
                self.change(pod, gate=gate.in_sync, gate_reason=closed, gate_since=self.now)
        for name, status in plan.pool_statuses.items():
            self.writes["pool status"] += 1
            self.pools[name]["status"] = copy.deepcopy(dict(status))
        if plan.roster is not None:
            self.roster = plan.roster

    def _delete(self, gone: ObjectDeletion) -> None:
        self.writes["delete"] += 1
        if gone.kind == "RLJob":
            self.job = None
        elif gone.kind == "RolloutPool":
            self.pools.pop(gone.name, None)
        else:
            child = self.children.pop(f"{gone.kind}/{gone.name}")
            assert child["metadata"]["uid"] == gone.uid
            for pod in self.pods_of(gone.name) if gone.kind == "Deployment" else ():
                del self.pods[pod.uid]

    def _store(self, body: Manifest) -> None:
        refusal = self.refusals.get(apply_needed.key(body))
        if refusal is not None and refusal.digest == apply_needed.digest(body):
            return
        store = self.pools if body["kind"] == "RolloutPool" else self.children
        name = body["metadata"]["name"]
        key = name if body["kind"] == "RolloutPool" else f"{body['kind']}/{name}"
        old: Mapping[str, Any] = store.get(key, {})
        kept = copy.deepcopy(body)
        before = old.get("metadata", {"uid": f"uid-of-{body['kind']}-{name}", "generation": 0})
        kept["metadata"] |= {
            "uid": before["uid"],
            "generation": before["generation"] + (old.get("spec") != kept.get("spec")),
            "resourceVersion": str(int(before.get("resourceVersion", 0)) + 1),
        }
        if "status" in old:
            kept["status"] = old["status"]
        if body["kind"] == "StatefulSet":  # its controller has seen it
            kept["status"] = {
                "observedGeneration": kept["metadata"]["generation"],
                "updateRevision": revision_of(kept),
            }
        store[key] = kept

    # --- pods ----------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Have as many pods as StatefulSets and Deployments ask for, newest go first."""
        for child in self.children.values():
            if child["kind"] not in {"StatefulSet", "Deployment"}:
                continue
            own = self.pods_of(child["metadata"]["name"])
            for pod in own[child["spec"]["replicas"] :]:
                del self.pods[pod.uid]
            for _ in range(child["spec"]["replicas"] - len(own)):
                self._make_pod(child)

    def _make_pod(self, child: Manifest) -> None:
        self._uid += 1
        template, name = child["spec"]["template"]["metadata"], child["metadata"]["name"]
        trainer = child["kind"] == "StatefulSet"
        taken = {pod.name for pod in self.pods.values()}
        suffix = next(i for i in range(999) if f"{name}-{i}" not in taken) if trainer else self._uid
        self.pods[f"pod-{self._uid}"] = PodFacts(
            name=f"{name}-{suffix}",
            uid=f"pod-{self._uid}",
            role=template["labels"][labels.ROLE],
            job_uid=template["annotations"][labels.JOB_UID],
            pool="" if trainer else name,
            container=template["labels"][labels.ROLE],
            created=self.now,
            revision=revision_of(child) if trainer else "",
            restart_requests={
                name: template["annotations"][name]
                for name in labels.RESTART_REQUESTS
                if name in template["annotations"]
            },
        )

    def _sync_pods(self) -> None:
        """The kubelet has seen the gates that were set by the last reconcile."""
        for pod in list(self.pods.values()):
            if pod.role == labels.ROLLOUT:
                ready = pod.running and bool(pod.gate)
                self.change(pod, ready=ready, almost_ready=pod.running and not ready)

    def pods_of(self, owner: str) -> list[PodFacts]:
        """Pods of a StatefulSet or Deployment, oldest first."""
        return [
            pod
            for pod in self.pods.values()
            if pod.pool == owner or (not pod.pool and pod.name.startswith(f"{owner}-"))
        ]

    def change(self, pod: PodFacts, **facts: Any) -> PodFacts:
        """Something happened to a pod."""
        self.pods[pod.uid] = replace(pod, **facts)
        return self.pods[pod.uid]

    def run(self, *pods: PodFacts) -> None:
        """The kubelet runs these pods (all, if none is named), which makes others than rollouts
        ready.
        """
        for pod in pods or tuple(self.pods.values()):
            address = f"10.0.0.{pod.uid.rpartition('-')[2]}"
            self.change(
                pod,
                phase="Running",
                running=True,
                up=True,
                started=pod.started or self.now,
                ip=address,
                ready=pod.role != labels.ROLLOUT,
            )

    @property
    def trainer(self) -> PodFacts:
        """The pod of trainer rank 0."""
        return self.pods_of(f"{JOB}-trainer")[0]

    # --- the coordinator -----------------------------------------------------------------------

    def report(
        self,
        *,
        step: int = 0,
        states: Mapping[str, MemberState] | None = None,
        reward: float | None = None,
        finished: TrainingResult | None = None,
        learning: LearningReport | None = None,
        steps_alike: int = 0,
        **more: Any,
    ) -> None:
        """The coordinator has the latest roster, formed its session, and says so."""
        assert self.roster is not None
        assert self.job is not None
        others = self.job["spec"].get("weightSync", {}).get("groups", ())
        groups = ["default", *(group["name"] for group in others)]
        progress = TrainingProgress(
            *(step, 200, step, reward), learning=learning, steps_alike=steps_alike
        )
        self.snapshot = snapshot_of(
            self.roster, progress, groups=groups, states=states, finished=finished, **more
        )

    # --- short cuts ----------------------------------------------------------------------------

    def to_running(self) -> None:
        """From apply to Running."""
        self.converge()
        self.schedule()
        self.run()
        self.converge(0.5)
        self.report()
        self.converge(0.5)
        self.converge(2.0)
        assert self.status["phase"] == "Running"

    @property
    def status(self) -> Manifest:
        """The job's status."""
        assert self.job is not None
        status: Manifest = self.job.get("status", {})
        return status

    def condition(self, kind: str) -> Manifest:
        """One condition of the job."""
        found: Manifest = next(c for c in self.status["conditions"] if c["type"] == kind)
        return found

    def pool_condition(self, name: str, kind: str) -> Manifest:
        """One condition of a pool."""
        conditions = self.pools[name]["status"]["conditions"]
        found: Manifest = next(c for c in conditions if c["type"] == kind)
        return found

    def edit(self, changes: Changes) -> None:
        """The user changes the job."""
        assert self.job is not None
        self.job = changed(self.job, changes)
        self.job["metadata"]["generation"] += 1

    def delete_pool(self, name: str) -> None:
        """The pool goes, and what it owned with it."""
        self.pools.pop(name, None)
        self.children.pop(f"Deployment/{name}", None)
        for pod in self.pods_of(name):
            del self.pods[pod.uid]

    def scale(self, name: str, replicas: int) -> None:
        """Like `kubectl scale rolloutpool/NAME`."""
        self.pools[name]["spec"]["replicas"] = replicas
        self.pools[name]["metadata"]["generation"] += 1


def orphaned() -> JobSimulator:
    """`kubectl delete --cascade=orphan`, and apply again: the garbage collector takes the owners
    away, the second job has another uid, and the pods of the first one run on.
    """
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.job is not None
    simulator.job["metadata"]["uid"] = "second-uid"
    simulator.job.pop("status")
    for child in (*simulator.pools.values(), *simulator.children.values()):
        owners = child["metadata"]["ownerReferences"]
        child["metadata"]["ownerReferences"] = [o for o in owners if o["kind"] != "RLJob"]
    simulator.memory, simulator.snapshot = type(simulator.memory)(), None
    return simulator


def _content(body: Manifest) -> bytes:
    metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
    kept = {k: v for k, v in body.items() if k != "status"} | {"metadata": metadata}
    return json.dumps(kept, sort_keys=True).encode()


def _without_memory(plan: JobPlan) -> JobPlan:
    return replace(plan, memory=replace(plan.memory, settled=None))
