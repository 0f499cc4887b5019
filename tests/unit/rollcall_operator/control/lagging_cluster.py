"""One job on a stand-in for an API server, with an operator whose watches lag behind at will.

The operator's own parts run: reader, store, planner and applier. The controllers of Kubernetes, the
kubelet and the coordinator do here what they are asked to, and look at what there really is.
"""

import copy
from collections import Counter
from dataclasses import replace

from rollcall_local.controllers.garbage import orphans
from rollcall_operator.api import labels
from rollcall_operator.control.job_store import CHILDREN
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
)
from rollcall_operator.plan.job import make_plan
from rollcall_operator.plan.model import JobPlan, PodFacts
from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.timestamps import to_time
from rollcall_protocol.pod_contract import READINESS_GATE
from rollcall_protocol.wire.job_snapshot import MemberState, TrainingProgress
from rollcall_protocol.wire.roster import Roster
from tests.apiserver.bad_manifests.manifests import changed
from tests.unit.rollcall_operator.control.api_server_stand_in import (
    Client,
    Object,
    Objects,
    merged,
    with_conditions,
)
from tests.unit.rollcall_operator.control.lagging_operator import Operator
from tests.unit.rollcall_operator.plan.coordinator_snapshots import snapshot_of
from tests.unit.rollcall_operator.plan.simulator import (
    JOB,
    NAMESPACE,
    START,
    good_job,
    revision_of,
    writes_anything,
)

POOL = f"{JOB}-cpu"
REPLICAS = 4
SPEC = {"spec.rollouts[0].replicas": REPLICAS, "spec.membership": {"replaceAfterSeconds": 30}}


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
        self.objects.put(resource, merged(owner, {"status": status}))

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
        return with_conditions(
            merged(pod, {"status": status}),
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": ready},
        )

    def fail(self, number: int) -> None:
        """A rollout's node evicts it."""
        rollouts = self._rollouts()
        if rollouts:
            name = rollouts[number % len(rollouts)].name
            pod = self.objects.there[PODS.plural, name]
            self.objects.put(PODS, merged(pod, {"status": {"phase": "Failed"}}))

    def collect(self) -> None:
        """What is being deleted, other than pods, goes, and with it what it owns.

        So does what was made for an owner that was gone by then.
        """
        kinds = (RL_JOBS, ROLLOUT_POOLS, *CHILDREN)
        gone = orphans(each for kind in kinds for each in self.objects.of(kind))
        for resource in (ROLLOUT_POOLS, *CHILDREN):
            for each in self.objects.of(resource):
                if "deletionTimestamp" in each["metadata"] or each in gone:
                    self.objects.drop(resource, each["metadata"]["name"])
        makers = {
            each["metadata"]["name"]
            for kind in (STATEFUL_SETS, DEPLOYMENTS)
            for each in self.objects.of(kind)
        }
        for pod in self.objects.of(PODS):
            if pod["metadata"]["ownerReferences"][0]["name"] not in makers:
                self.objects.drop(PODS, pod["metadata"]["name"])

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
