"""One job with everything that belongs to it, sorted out once for all policies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.rolloutpool import RolloutPoolSpec
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus, SyncGroupStatus
from rollcall_operator.plan.children.rollout import is_owned, pool
from rollcall_operator.plan.failure import JobOutcome, TrainerRestarts
from rollcall_operator.plan.model import Manifest, ObservedJob, PodFacts
from rollcall_operator.plan.rollout_settings import engine_errors
from rollcall_operator.plan.validate import group_errors, name_errors, parse, template_errors
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberReport, MemberState


@dataclass(frozen=True, slots=True)
class PoolView:
    """A RolloutPool that serves the job. `path` leads to its spec in messages about the job.

    `wanted` is how many pods it should have now: 0 while the job is suspended or finished. `pods`
    are those that are Pending or Running and not terminating; `leaving` counts terminating ones.
    `exists` is False for a pool that is about to be created for the job.
    """

    name: str
    raw: Manifest
    status: RolloutPoolStatus
    spec: RolloutPoolSpec | None
    errors: tuple[str, ...]
    path: str
    owned: bool
    exists: bool
    wanted: int
    pods: tuple[PodFacts, ...]
    leaving: int

    @property
    def ready(self) -> int:
        """Pods that are ready."""
        return sum(pod.ready for pod in self.pods)


@dataclass(frozen=True, slots=True)
class CoordinatorReport:
    """What the coordinator reported last about rollouts and their sync groups.

    `snapshot` is None unless it comes from the pod that is the coordinator now; `members` are its
    member reports by pod uid. `weight_sync` is `spec.weightSync.enabled`.
    """

    snapshot: JobSnapshot | None
    weight_sync: bool
    members: Mapping[str, MemberReport] = field(default_factory=dict)

    def of(self, pod: PodFacts) -> MemberReport | None:
        """The report on one rollout; None where the coordinator does not know it."""
        return self.members.get(pod.uid)

    def is_of(self, group: SyncGroupStatus | None) -> bool:
        """Whether the coordinator holds the roster of the group's epoch."""
        if self.snapshot is None or group is None:
            return False
        return self.snapshot.roster_epoch == group.epoch

    def group_is_formed(self, name: str, *, epoch: int) -> bool:
        """Whether a group is known to have a session for the job's roster of `epoch`.

        The session's own epoch may be older: a roster that changes no seat keeps the session.
        """
        report = self.snapshot.group(name) if self.snapshot else None
        if self.snapshot is None or report is None or report.session is None:
            return False
        return self.snapshot.roster_epoch == epoch and report.formed

    def holds_weights(self, pod: PodFacts) -> bool:
        """Whether a rollout serves current weights.

        Without a report the pod's readiness gate is believed. Without weight sync every live
        rollout counts.
        """
        report = self.of(pod)
        if self.snapshot is None:
            return bool(pod.gate)
        if report is None:
            return False
        if not self.weight_sync:
            return report.state in {
                MemberState.IN_SYNC,
                MemberState.STALE,
                MemberState.CATCHING_UP,
                MemberState.REGISTERED,
            }
        return report.state is MemberState.IN_SYNC


@dataclass(frozen=True, slots=True)
class JobView:
    """One job with everything that belongs to it.

    A policy that reads most of it takes the view; all others, and what a policy calls, take the
    parts that they read.
    """

    observed: ObservedJob
    job: Manifest
    spec: RLJobSpec
    status: RLJobStatus
    restarts: TrainerRestarts
    outcome: JobOutcome | None
    trainers: tuple[PodFacts, ...]
    coordinator: PodFacts | None
    report: CoordinatorReport
    pools: tuple[PoolView, ...] = ()

    @property
    def now(self) -> float:
        """When the job was observed, in Unix seconds."""
        return self.observed.now

    @property
    def name(self) -> str:
        return self.observed.name

    @property
    def uid(self) -> str:
        return str(self.job["metadata"]["uid"])

    @property
    def no_pods_wanted(self) -> bool:
        """Whether the job should have no pods now."""
        return should_have_no_pods(self.spec, self.outcome)

    @property
    def references(self) -> tuple[PodFacts, ...]:
        """The reference's own pods that are not terminating, by name."""
        return _alive(self.observed, labels.REFERENCE)

    @property
    def fronts(self) -> tuple[PodFacts, ...]:
        """Pods of the front that are not terminating, by name."""
        return _alive(self.observed, labels.FRONT)

    @property
    def reference_replicas(self) -> int:
        """How many pods of its own the reference should have now.

        They outlast the trainer, which may be waiting for them in its last step.
        """
        if self.spec.reference.template is None:
            return 0
        trained = next(pods_of_role(self.observed, labels.TRAINER), None) is not None
        return 0 if self.no_pods_wanted and not trained else self.spec.reference.replicas

    @property
    def group(self) -> SyncGroupStatus | None:
        """Status of the job's default sync group; None before the first epoch."""
        return self.status.default_group

    @property
    def stopped(self) -> bool:
        """Whether the job has finished or is suspended."""
        return self.outcome is not None or self.spec.suspend


def should_have_no_pods(spec: RLJobSpec, outcome: JobOutcome | None) -> bool:
    """Whether a job in this state should have no pods."""
    if outcome is not None:
        return spec.clean_pod_policy == "All"
    return spec.suspend


def trainer_pods(observed: ObservedJob) -> tuple[PodFacts, ...]:
    """Trainer pods of this very job (by uid) that are not terminating, by name."""
    return _alive(observed, labels.TRAINER)


def rollout_pods(observed: ObservedJob) -> tuple[PodFacts, ...]:
    """Rollout pods of this very job (by uid) that are not terminating, by name."""
    return _alive(observed, labels.ROLLOUT)


def _alive(observed: ObservedJob, role: str) -> tuple[PodFacts, ...]:
    pods = pods_of_role(observed, role)
    return tuple(sorted((p for p in pods if not p.terminating), key=lambda p: p.name))


def pods_of_role(observed: ObservedJob, role: str) -> Iterator[PodFacts]:
    """Pods of this very job (by uid), also those that are terminating."""
    uid = observed.job_uid
    return (p for p in observed.pods if p.role == role and p.job_uid == uid)


def find_coordinator(observed: ObservedJob) -> PodFacts | None:
    """The pod of trainer rank 0 once it runs; it stays the same when its container restarts."""
    wanted = labels.coordinator_pod(observed.name)
    for pod in trainer_pods(observed):
        if pod.name == wanted and pod.phase == "Running" and pod.ip:
            return pod
    return None


def trusted_snapshot(observed: ObservedJob, coordinator: PodFacts | None) -> JobSnapshot | None:
    """The coordinator's report, if it comes from the pod that is rank 0 now."""
    snapshot = observed.snapshot
    if snapshot is None or coordinator is None or snapshot.pod_uid != coordinator.uid:
        return None
    return snapshot


def pools_of(
    observed: ObservedJob, job: Manifest, spec: RLJobSpec, outcome: JobOutcome | None
) -> tuple[PoolView, ...]:
    """All pools that serve the job or are about to, by name; not those that are being deleted."""
    uid, name = job["metadata"]["uid"], observed.name
    places = {
        labels.pool_name(name, rollout.name): f"spec.rollouts[{index}]"
        for index, rollout in enumerate(spec.rollouts or ())
    }
    no_pods_wanted = should_have_no_pods(spec, outcome)
    there = {raw["metadata"]["name"] for raw in observed.pools}
    planned = (pool(job, rollout, None) for rollout in spec.rollouts or ())
    raws = [raw for raw in observed.pools if "deletionTimestamp" not in raw["metadata"]]
    raws += [raw for raw in planned if raw["metadata"]["name"] not in there]
    return tuple(
        _pool(
            observed,
            raw,
            uid=uid,
            place=places.get(raw["metadata"]["name"]),
            no_pods_wanted=no_pods_wanted,
            job_spec=spec,
        )
        for raw in sorted(raws, key=lambda raw: str(raw["metadata"]["name"]))
    )


def _no_use_for_rollouts(job_spec: RLJobSpec) -> Iterator[str]:
    if not job_spec.has_rollouts:
        yield (
            "spec.jobRef.name: the RLJob is supervised, so that nothing uses samples; delete the "
            "pool, or name another job"
        )


def _pool(
    observed: ObservedJob,
    raw: Manifest,
    *,
    uid: str,
    place: str | None,
    no_pods_wanted: bool,
    job_spec: RLJobSpec,
) -> PoolView:
    name = raw["metadata"]["name"]
    spec, errors = parse(RolloutPoolSpec, raw["spec"], "spec")
    if spec is not None:
        errors = (
            *_no_use_for_rollouts(job_spec),
            *name_errors(job_spec, observed.name, name),
            *group_errors(job_spec, spec, "spec"),
            *engine_errors(job_spec, spec, "spec"),
            *template_errors(spec.template, labels.ROLLOUT, "spec.template"),
        )
    pods = [p for p in observed.pods if p.pool == name and p.role == labels.ROLLOUT]
    pods = sorted((p for p in pods if p.job_uid == uid), key=lambda p: p.name)
    alive = tuple(p for p in pods if not p.terminating and p.phase in {"Pending", "Running"})
    owned = is_owned(raw, uid)
    return PoolView(
        name=name,
        raw=raw,
        status=RolloutPoolStatus.read(raw.get("status")),
        spec=spec,
        errors=errors,
        path=place if owned and place else f"RolloutPool {name}: spec",
        owned=owned,
        exists="uid" in raw["metadata"],
        wanted=0 if no_pods_wanted else int(raw["spec"].get("replicas", 1)),
        pods=alive,
        leaving=sum(p.terminating for p in pods),
    )
