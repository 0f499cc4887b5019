"""What the planner reads and what it decides: plain frozen values, no I/O.

The control half gathers an `Observed`, calls `make_plan`, and carries the `Plan` out in this
order: token, applies, deletes, job status (compare-and-swap when `epoch_change`), then the roster
to the coordinator, gates, pool statuses, events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollcall_protocol.reports import Snapshot
from rollcall_protocol.roster import Roster

Manifest = dict[str, Any]
"""A Kubernetes object as a raw dictionary."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What planning needs of one worker pod; made by `plan.pods.pod_facts`.

    `container` is the container that the waiting, exit and restart facts are about: the worker,
    or an init container that is stuck (`init`). `gate` is the readiness gate's condition, None if
    absent. `almost_ready`: ready but for this gate.
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused a child: `digest` is `plan.diff.digest` of the refused object."""

    digest: str
    message: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What the operator remembers of one job between reconciles; empty after its own restart.

    `roster` is the last one that is in status and was handed out; `first_seen` maps the uid of an
    eligible pod to the time (Unix seconds) of the reconcile that saw it first.
    """

    roster: Roster | None = None
    first_seen: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """The world at one moment, for one (namespace, job name).

    `job` is None when no RLJob has that name. `pools` are all RolloutPools whose `spec.jobRef`
    names the job, owned by it or not. `token_exists`: the job's Secret is there and has this job
    as its owner (not an earlier job of the same name). `children` are the live Services,
    StatefulSets and Deployments with the job's label. `refusals` is keyed by `plan.diff.key`, e.g.
    "StatefulSet/reverse-trainer". `now` is Unix time in seconds.
    """

    namespace: str
    name: str
    now: float
    job: Manifest | None = None
    pools: tuple[Manifest, ...] = ()
    children: tuple[Manifest, ...] = ()
    token_exists: bool = False
    pods: tuple[PodFacts, ...] = ()
    snapshot: Snapshot | None = None
    memory: Memory = field(default_factory=Memory)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete this object if it still has this uid (background propagation)."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class GatePatch:
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
class Plan:
    """What to do now; everything empty when the world is as it should be.

    applies: whole objects for a server-side apply, in order. One that carries
        `metadata.resourceVersion` may meet a conflict: reconcile again. After a RolloutPool was
        created, reconcile again: its Deployment needs the pool's uid.
    token: the Secret to create (POST, never apply); the caller fills `stringData` with a random
        value for each of its two keys, which are there with an empty value.
    deletes: owned objects that are no longer wanted, or the job itself after its time to live.
    job_status, pool_statuses: the whole new status, None or absent when nothing is to be written.
    epoch_change: the job status carries a new epoch: write it with the job's resourceVersion,
        and hand out `roster` only if that succeeded.
    roster: what the coordinator should hold; None when it should be left alone. Push it when the
        coordinator's snapshot names another epoch or digest.
    requeue_after: seconds after which to look again though nothing was seen to change.
    memory: to hand back in the next `Observed`, unless the status write failed.
    """

    applies: tuple[Manifest, ...] = ()
    token: Manifest | None = None
    deletes: tuple[Deletion, ...] = ()
    job_status: Manifest | None = None
    epoch_change: bool = False
    pool_statuses: Mapping[str, Manifest] = field(default_factory=dict)
    gates: tuple[GatePatch, ...] = ()
    roster: Roster | None = None
    events: tuple[EventNote, ...] = ()
    requeue_after: float | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def writes_nothing(self) -> bool:
        """True when carrying the plan out would not touch the API server."""
        return not (
            self.applies
            or self.token
            or self.deletes
            or self.job_status
            or self.pool_statuses
            or self.gates
            or self.events
        )
