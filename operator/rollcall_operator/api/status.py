"""The status of both resources, as the planner writes it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from rollcall_operator.api.conditions import JobPhase, SyncGroupPhase
from rollcall_operator.api.rules import Model

HISTORY = 20
"""How many epochs and sessions a job remembers."""

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Number = Annotated[int, Field(ge=0)]


def _keyed(*keys: str, longest: int) -> Any:
    extra: dict[str, Any] = {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
    }
    return Field(default_factory=list, max_length=longest, json_schema_extra=extra)


class Condition(Model):
    """metav1.Condition."""

    type: Annotated[str, Field(max_length=316)]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Number = 0
    last_transition_time: Time
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32768)]


class TrainerStatus(Model):
    """The gang."""

    replicas: Number = 0
    """Pods wanted now."""
    ready: Number = 0
    """Pods ready."""
    restarts: Number = 0
    """Restarts that count against maxRestarts; begins anew after the stability window."""
    total_restarts: Number = 0
    """All restarts of the gang."""
    pod_restarts: Number = 0
    """The most container restarts of a live trainer pod when last counted."""
    last_restart_time: Time | None = None


class ProgressStatus(Model):
    """Where training stands; written at most every ten seconds while nothing else changes."""

    step: Number = 0
    max_steps: Number = 0
    weight_version: Number = 0
    rollout_reward: str | None = None
    """Mean reward of the latest samples that rollouts drew, a decimal string."""
    paused: str | None = None
    """Why the trainer waits, if it does."""
    warning: str | None = None
    """What is wrong though training goes on: a checkpoint that could not be written."""
    last_update: Time


class Rebuild(Model):
    """One forming of the communication group."""

    session: str
    """epoch.boot.attempt"""
    cause: str
    seconds: str
    """From the cause to a usable group, a decimal string."""
    time: Time


class SessionRecord(Model):
    """Why a session was formed, and how fast."""

    session: str
    """epoch.boot.attempt"""
    cause: str
    message: Annotated[str, Field(max_length=1024)] = ""
    """What showed it."""
    members: Number
    """Members of the session, the trainer included."""
    seconds: str
    """From the cause to a usable group, a decimal string."""
    time: Time


class EpochRecord(Model):
    """Why an epoch was opened."""

    epoch: Number
    cause: str
    message: Annotated[str, Field(max_length=1024)] = ""
    members: Number
    """Members on the roster, the trainer included."""
    time: Time


class SyncGroupStatus(Model):
    """A sync group: the trainer and every rollout that gets its weights."""

    name: str
    engine: str
    epoch: Number
    """Goes up by one whenever the roster changes."""
    roster_digest: str | None = None
    """Of the job's roster; the default group has it."""
    coordinator: str | None = None
    """Uid of the pod that this epoch names as coordinator."""
    phase: SyncGroupPhase
    members: Number = 0
    """Members of the session that is in use, the trainer included."""
    rebuilds: Number = 0
    """Sessions formed by the coordinator that runs now."""
    last_rebuild: Rebuild | None = None
    history: Annotated[list[EpochRecord], Field(default_factory=list, max_length=HISTORY)]
    """The latest epochs, oldest first."""
    sessions: Annotated[list[SessionRecord], Field(default_factory=list, max_length=HISTORY)]
    """The latest sessions, oldest first."""


class PoolSummary(Model):
    """A pool that serves the job, owned by it or lent."""

    name: str
    replicas: Number = 0
    ready: Number = 0
    in_sync: Number = 0


class RLJobStatus(Model):
    """What is the case."""

    observed_generation: Number = 0
    phase: JobPhase | None = None
    epoch: Number = 0
    """Epoch of the default sync group."""
    rollouts: str | None = None
    """Ready and wanted rollouts of all pools, such as 2/4."""
    start_time: Time | None = None
    completion_time: Time | None = None
    conditions: Annotated[list[Condition], _keyed("type", longest=16)]
    trainer: TrainerStatus | None = None
    progress: ProgressStatus | None = None
    sync_groups: Annotated[list[SyncGroupStatus], _keyed("name", longest=8)]
    pools: Annotated[list[PoolSummary], _keyed("name", longest=256)]


class VersionRange(Model):
    """Lowest and highest weight version that the pool's rollouts serve."""

    min: Number
    max: Number


class RolloutPoolStatus(Model):
    """What is the case."""

    observed_generation: Number = 0
    replicas: Number = 0
    """Pods there are."""
    ready_replicas: Number = 0
    in_sync: Number = 0
    """Rollouts with current weights."""
    stale: Number = 0
    """Rollouts that are alive and behind."""
    draining: Number = 0
    """Rollouts that are leaving."""
    epoch: Number = 0
    """The job's epoch."""
    weight_version: VersionRange | None = None
    selector: str | None = None
    """Label selector of the pods, for autoscalers."""
    last_update: Time | None = None
    conditions: Annotated[list[Condition], _keyed("type", longest=8)]
