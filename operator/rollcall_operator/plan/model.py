"""What the planner reads and what it decides: plain frozen values, no I/O.

`control` gathers an `ObservedJob`, calls `make_plan`, and carries out the `JobPlan` in this order:
deletion costs, applies, deletes, job status (compare-and-swap when `epoch_change`), then
the roster to the coordinator, pod deletions, readiness gates, pool statuses, events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import EventReason, Reason
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.roster import Roster
from rollcall_protocol.wire.trust_bundle import TrustBundle

Manifest = dict[str, Any]
"""A Kubernetes object as a raw dictionary."""

JobKey = tuple[str, str]
"""Namespace and job name."""

NETWORK_POLICY = "NetworkPolicy"
"""The kind of object."""


# --- what the planner reads ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod; an empty key or effect stands for all of them."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether a pod with this toleration may stay on a node with `taint`."""
        same = self.operator == "Exists" or self.value == taint.value
        return self.key in {"", taint.key} and self.effect in {"", taint.effect} and same


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node in trouble; made by `plan.membership.nodes.node_facts`.

    `preempted`: its taints that announce its termination. `lost`: its kubelet stopped reporting
    (condition Ready is Unknown).
    """

    name: str
    preempted: tuple[Taint, ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What planning needs of one worker pod; made by `plan.pod_facts.pod_facts`.

    `version` is the resourceVersion. `container` is the container that the waiting, exit and
    restart facts describe: the worker, or an init container that failed (`init`). `exit_message` is
    the summary of its termination message; `oom_killed`: the kernel killed it, as it used more
    memory than its limit; `ran_for`: how many seconds it had run. `gate` is the readiness gate's
    condition, None if absent. `almost_ready`: every other condition for readiness is met. `up`: the
    worker has passed its startup probe. Times are Unix seconds: `started` of the worker,
    `ready_since` of a pod that is ready, `gate_since` of the gate's last change, `leaves_by` the
    end of a terminating pod's grace period. `deletion_cost` is the annotation, None if absent.
    `revision` is that of a StatefulSet's pod; `restart_requests` are the annotations that it was
    made with of those that ask for a restart. `mounting_since`: when a node was found for a pod
    whose volumes are not mounted yet, so that no container can start; `mount_failure` is the
    kubelet's message.
    """

    name: str
    uid: str
    role: str
    version: str = ""
    job_uid: str = ""
    pool: str = ""
    ip: str = ""
    node: str = ""
    phase: str = "Pending"
    running: bool = False
    ready: bool = False
    terminating: bool = False
    restarts: int = 0
    exit_code: int | None = None
    exit_message: str = ""
    oom_killed: bool = False
    ran_for: float | None = None
    waiting_reason: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    container: str = ""
    init: bool = False
    gate: bool | None = None
    almost_ready: bool = False
    up: bool = False
    created: float = 0.0
    started: float | None = None
    ready_since: float | None = None
    gate_since: float | None = None
    gate_reason: str = ""
    leaves_by: float | None = None
    deletion_cost: str | None = None
    revision: str = ""
    restart_requests: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    mounting_since: float | None = None
    mount_failure: str = ""

    @property
    def in_back_off(self) -> bool:
        """Whether the container has ended, and the kubelet waits until it starts it again."""
        return self.waiting_reason == "CrashLoopBackOff"


class LinkFailure(StrEnum):
    """Why a coordinator does not report to the operator."""

    UNREACHABLE = "Unreachable"  # no connection, or another pod answers
    SILENT = "Silent"  # connected, and no byte arrives
    REFUSED = "Refused"  # it does not accept the operator's token
    INCOMPATIBLE = "Incompatible"  # its answer cannot be read
    EXCESSIVE = "Excessive"  # it sends more than one job may have read
    UNTRUSTED = "Untrusted"  # it does not prove that it is the coordinator


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """The operator's connection to a coordinator: whether it is open, when the last byte arrived
    (`since`, Unix seconds; at first, when the operator began to call, or since when an earlier one
    got nothing) and why the last attempt failed.
    """

    connected: bool
    since: float
    failure: LinkFailure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused a child: `digest` is `plan.apply_needed.digest` of what it refused."""

    digest: str
    message: str


@dataclass(frozen=True, slots=True)
class AbsentPods:
    """Pods that a coordinator misses, by uid, each with the time (Unix seconds) since when.

    `coordinator` is the incarnation that misses them: pod uid and boot.
    """

    coordinator: tuple[str, int]
    since: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReconcileMemory:
    """What the planner remembers of one job between reconciles; empty after an operator restart.

    `roster` is the last one that was written to status and handed out; `first_seen` maps the uid
    of an eligible pod to the time (Unix seconds) of the reconcile that first saw it.
    `warned_trainers`: uids of trainer pods about whose terminating node an event was recorded.
    `settled`: the last inputs for which a valid spec's children were all as they should be.
    """

    roster: Roster | None = None
    first_seen: Mapping[str, float] = field(default_factory=dict)
    absences: AbsentPods | None = None
    warned_trainers: frozenset[str] = frozenset()
    settled: tuple[object, ...] | None = None


@dataclass(frozen=True, slots=True)
class PolicyPeers:
    """Whom NetworkPolicies of jobs let in from outside of the job, as NetworkPolicyPeers.

    `operator`: where the operator's connections come from, None where it is not known.
    `monitoring`: who may read metrics.
    """

    operator: tuple[Manifest, ...] | None = None
    monitoring: tuple[Manifest, ...] = ()


NUMBERS_ONLY = 10.0
"""Seconds between two writes of a status in which only numbers change, at least."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """Everything that exists for one (namespace, job name) at one moment.

    `job` is None when no RLJob has that name. `pools` are all RolloutPools whose `spec.jobRef`
    names the job, owned by it or not. `children` are the live Services, StatefulSets, Deployments
    and NetworkPolicies with the job's label, and its ConfigMap. `trust` is what workers are to
    check tokens by; None where the operator does not know the cluster's keys. `policy_peers` and
    `worker_user` are the operator's settings, `policies_enforced` what it found out by trying, None
    while it does not know. `authority` is the certificate (PEM) of who signs for jobs' servers,
    `certificates_refused` why the Secret of such a server could not be made. `snapshot` is the
    coordinator's last report, `link` the connection that it came by, None if there is no
    coordinator to call. `refusals` is keyed by `plan.apply_needed.key`, such as
    "StatefulSet/reverse-trainer"; `creation_failures` as well: why a StatefulSet that lacks pods
    could not create the last one. `nodes` are those in trouble, by name; empty where nodes are not
    watched. `contents` are digests of job, pools and children without status and resourceVersion,
    None if they were read live. `numbers_every`: seconds between writes of a status in which only
    numbers change. `now` is Unix seconds.
    """

    namespace: str
    name: str
    now: float
    job: Manifest | None = None
    pools: tuple[Manifest, ...] = ()
    children: tuple[Manifest, ...] = ()
    trust: TrustBundle | None = field(default=None, repr=False)
    authority: str = field(default="", repr=False)
    certificates_refused: str = ""
    policy_peers: PolicyPeers = field(default_factory=PolicyPeers)
    policies_enforced: bool | None = None
    worker_user: int | None = None
    pods: tuple[PodFacts, ...] = ()
    snapshot: JobSnapshot | None = None
    link: LinkFacts | None = None
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    creation_failures: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    contents: frozenset[bytes] | None = None
    numbers_every: float = NUMBERS_ONLY

    @property
    def job_uid(self) -> str:
        """The job's uid; empty when there is no job."""
        return str(self.job["metadata"]["uid"]) if self.job is not None else ""

    @property
    def gone(self) -> bool:
        """Whether neither the job nor a pool for it exists."""
        return self.job is None and not self.pools


# --- what the planner decides -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """Delete this pod if it still has this uid, and is as it was seen (`version`, the
    resourceVersion): with its own grace period, or none (`force`).

    Only a pod on a lost node is force-deleted: its object goes, its processes may still run.
    """

    pod: str
    uid: str
    version: str = ""
    force: bool = False

    @classmethod
    def of(cls, pod: PodFacts, *, force: bool = False) -> Self:
        """The deletion of a pod as it was seen."""
        return cls(pod=pod.name, uid=pod.uid, version=pod.version, force=force)


@dataclass(frozen=True, slots=True)
class DeletionCost:
    """Set `controller.kubernetes.io/pod-deletion-cost` of one pod; None removes it."""

    pod: str
    uid: str
    cost: str | None


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """Delete this object if it still has this uid (background propagation)."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReadinessGatePatch:
    """Set the readiness gate's condition of one pod (of this uid)."""

    pod: str
    uid: str
    in_sync: bool
    reason: str
    message: str


Severity = Literal["Normal", "Warning"]

_LONGEST_EVENT = 1000


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """A Kubernetes event about the object that `regarding` refers to."""

    type: Severity
    reason: Reason | EventReason
    message: str
    regarding: Mapping[str, str]

    @classmethod
    def about(
        cls, subject: Manifest, severity: Severity, reason: Reason | EventReason, message: str
    ) -> Self:
        """An event about an RLJob or RolloutPool; a long message is cut."""
        metadata = subject["metadata"]
        regarding = {
            "apiVersion": labels.API_VERSION,
            "kind": subject["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        return cls(severity, reason, message[:_LONGEST_EVENT], regarding)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to do now; everything is empty when nothing has to change.

    costs: pods to mark before a Deployment is scaled down, so that the cheapest are deleted.
    applies: whole objects for a server-side apply, in order. One that carries
        `metadata.resourceVersion` may meet a conflict: reconcile again. After a RolloutPool was
        created, reconcile again: its Deployment needs the pool's uid.
    deletes: owned objects that are no longer wanted, or the job itself after its time to live.
    pod_deletions: pods to delete, so that their controllers replace them.
    job_status, pool_statuses: the whole new status, None or absent when nothing is to be written.
    epoch_change: the job status carries a new epoch: write it with the job's resourceVersion,
        and hand out `roster` only if that succeeded.
    roster: what the coordinator should hold; None leaves it unchanged. Push it when the
        coordinator's snapshot names another epoch or digest.
    requeue_after: seconds after which to reconcile again even without an event.
    memory: to hand back in the next `ObservedJob`, unless the status write failed.
    """

    costs: tuple[DeletionCost, ...] = ()
    applies: tuple[Manifest, ...] = ()
    deletes: tuple[ObjectDeletion, ...] = ()
    pod_deletions: tuple[PodDeletion, ...] = ()
    job_status: Manifest | None = None
    epoch_change: bool = False
    pool_statuses: Mapping[str, Manifest] = field(default_factory=dict)
    gates: tuple[ReadinessGatePatch, ...] = ()
    roster: Roster | None = None
    events: tuple[PlannedEvent, ...] = ()
    requeue_after: float | None = None
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
