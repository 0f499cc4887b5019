"""What the planner reads and what it decides: plain frozen values, no I/O.

The control half gathers an `ObservedJob`, calls `make_plan`, and carries the `JobPlan` out in this
order: costs, token, applies, deletes, job status (compare-and-swap when `epoch_change`), then the
roster to the coordinator, removals, gates, pool statuses, events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.roster import Roster

Manifest = dict[str, Any]
"""A Kubernetes object as a raw dictionary."""


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
        """Whether a pod with this may stay in spite of `taint`."""
        same = self.operator == "Exists" or self.value == taint.value
        return self.key in {"", taint.key} and self.effect in {"", taint.effect} and same


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node in trouble; made by `plan.nodes.node_facts`.

    `preempted`: its taints that say that it will soon be gone. `lost`: its kubelet is not heard of.
    """

    name: str
    preempted: tuple[Taint, ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What planning needs of one worker pod; made by `plan.pods.pod_facts`.

    `container` is the container that the waiting, exit and restart facts are about: the worker,
    or an init container that is stuck (`init`). `gate` is the readiness gate's condition, None if
    absent. `almost_ready`: ready but for this gate. `up`: the worker has passed its startup probe,
    so it no longer loads a model. Times are Unix seconds: `started` the worker,
    `gate_since` the gate's last change, `leaves_by` the end of the grace of a terminating pod.
    `deletion_cost` is the annotation, None if absent.
    """

    name: str
    uid: str
    role: str
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
    gate_since: float | None = None
    gate_reason: str = ""
    leaves_by: float | None = None
    deletion_cost: str | None = None
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused a child: `digest` is `plan.diff.digest` of the refused object."""

    digest: str
    message: str


@dataclass(frozen=True, slots=True)
class AbsentPods:
    """Since when (Unix seconds) one life of a coordinator (pod uid, boot) misses pods, by uid."""

    coordinator: tuple[str, int]
    since: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReconcileMemory:
    """What the operator remembers of one job between reconciles; empty after its own restart.

    `roster` is the last one that is in status and was handed out; `first_seen` maps the uid of an
    eligible pod to the time (Unix seconds) of the reconcile that saw it first. `told`: uids of
    trainer pods of which an event has been recorded that their node will be gone.
    """

    roster: Roster | None = None
    first_seen: Mapping[str, float] = field(default_factory=dict)
    absences: AbsentPods | None = None
    told: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The world at one moment, for one (namespace, job name).

    `job` is None when no RLJob has that name. `pools` are all RolloutPools whose `spec.jobRef`
    names the job, owned by it or not. `token_exists`: the job's Secret is there and has this job
    as its owner (not an earlier job of the same name). `children` are the live Services,
    StatefulSets and Deployments with the job's label. `refusals` is keyed by `plan.diff.key`, e.g.
    "StatefulSet/reverse-trainer". `now` is Unix time in seconds. `nodes` are those in trouble, by
    name; empty where nodes are not watched.
    """

    namespace: str
    name: str
    now: float
    job: Manifest | None = None
    pools: tuple[Manifest, ...] = ()
    children: tuple[Manifest, ...] = ()
    token_exists: bool = False
    pods: tuple[PodFacts, ...] = ()
    snapshot: JobSnapshot | None = None
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """Delete this pod if it still has this uid: with its own grace, or by `force` with none.

    Only a pod on a lost node is forced: it is struck off the record, and perhaps still runs.
    """

    pod: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeletionCost:
    """Set `controller.kubernetes.io/pod-deletion-cost` of one pod; None takes it away."""

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


@dataclass(frozen=True, slots=True)
class EventNote:
    """A Kubernetes event for a person to read; `regarding` is an object reference."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    regarding: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What to do now; everything empty when the world is as it should be.

    costs: pods to mark before a Deployment is scaled down, so that the cheapest go.
    applies: whole objects for a server-side apply, in order. One that carries
        `metadata.resourceVersion` may meet a conflict: reconcile again. After a RolloutPool was
        created, reconcile again: its Deployment needs the pool's uid.
    token: the Secret to create (POST, never apply); the caller fills `stringData` with a random
        value for each of its two keys, which are there with an empty value.
    deletes: owned objects that are no longer wanted, or the job itself after its time to live.
    removals: pods to delete, so that their controllers make others.
    job_status, pool_statuses: the whole new status, None or absent when nothing is to be written.
    epoch_change: the job status carries a new epoch: write it with the job's resourceVersion,
        and hand out `roster` only if that succeeded.
    roster: what the coordinator should hold; None when it should be left alone. Push it when the
        coordinator's snapshot names another epoch or digest.
    requeue_after: seconds after which to look again though nothing was seen to change.
    memory: to hand back in the next `ObservedJob`, unless the status write failed.
    """

    costs: tuple[DeletionCost, ...] = ()
    applies: tuple[Manifest, ...] = ()
    token: Manifest | None = None
    deletes: tuple[ObjectDeletion, ...] = ()
    removals: tuple[PodDeletion, ...] = ()
    job_status: Manifest | None = None
    epoch_change: bool = False
    pool_statuses: Mapping[str, Manifest] = field(default_factory=dict)
    gates: tuple[ReadinessGatePatch, ...] = ()
    roster: Roster | None = None
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)

    @property
    def writes_nothing(self) -> bool:
        """True when carrying the plan out would not touch the API server."""
        return not (
            self.costs
            or self.removals
            or self.applies
            or self.token
            or self.deletes
            or self.job_status
            or self.pool_statuses
            or self.gates
            or self.events
        )
