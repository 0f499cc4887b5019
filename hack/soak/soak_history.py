"""What a soak saw. Times are seconds of one machine's clock since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hack.soak.fault_plan import FaultKind

TRAINER, ROLLOUT = "trainer", "rollout"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault as it happened: `victim` names the pod, node or object, `uid` the pod; `trouble`
    says why it did not take place.
    """

    kind: FaultKind
    began: float
    healed: float
    victim: str = ""
    uid: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class WorkerInstance:
    """A worker's process as the machine sees it; `incarnation` differs after each restart."""

    pod: str
    uid: str
    role: str
    incarnation: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """What one worker's metrics said: name, or name{label} for those with a label of their own."""

    worker: WorkerInstance
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ApiObservation:
    """The API's view: pod uid to whether its pod is Ready, and the job's epochs and causes."""

    time: float
    ready: Mapping[str, bool]
    gates: Mapping[str, bool]
    epochs: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a worker's log."""

    time: float
    pod: str
    uid: str
    message: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What was found after the job was deleted, each as a list of names; all should be empty."""

    objects: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()


@dataclass(slots=True)
class SoakHistory:
    """Everything that was seen, in the order of time."""

    began: float
    max_staleness: int
    ended: float = 0.0
    faults: list[InjectedFault] = field(default_factory=list)
    readings: list[list[MetricsReading]] = field(
        default_factory=list
    )  # rounds; a trainer comes first
    sights: list[ApiObservation] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    final: list[MetricsReading] = field(
        default_factory=list
    )  # of the rollouts that serve at the end
    wanted: int = 0  # rollouts that should serve at the end
    leftovers: Leftovers | None = None
