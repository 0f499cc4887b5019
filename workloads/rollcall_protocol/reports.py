"""What the coordinator tells the operator: one JSON object a line, encoded as `messages` says."""

from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.ids import SessionId


class MemberState(StrEnum):
    """PROTOCOL: what the coordinator knows of a roster member."""

    REGISTERED = "Registered"
    CATCHING_UP = "CatchingUp"
    IN_SYNC = "InSync"
    SUSPECT = "Suspect"
    STALE = "Stale"
    DRAINING = "Draining"
    GONE = "Gone"


class SessionCause(StrEnum):
    """Why a session was formed."""

    NEW_ROSTER = "NewRoster"
    MEMBER_LOST = "MemberLost"
    MEMBER_CAUGHT_UP = "MemberCaughtUp"
    ENGINE_ERROR = "EngineError"


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The state of one member; `reason` says why when it is not InSync."""

    pod_uid: str
    pod: str
    pool: str
    state: MemberState
    version: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session is usable. `seconds` from its cause to now."""

    session: SessionId
    cause: SessionCause
    members: int
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where training stands; `rollout_reward` is the mean over samples drawn by rollouts."""

    step: int
    max_steps: int
    weight_version: int
    rollout_reward: float | None
    paused: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The trainer did its `max_steps` (error empty) or gave up."""

    step: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A sync group: the epoch of its roster, its last usable session, and how many there were."""

    name: str
    epoch: int
    session: SessionReport | None
    rebuilds: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """First line of the operator's stream and again after each change: the whole state.

    The default one comes first in `groups`. A group whose members stay the same keeps its epoch
    while the job's goes up.
    """

    pod_uid: str
    boot: int
    roster_epoch: int
    roster_digest: str
    members: tuple[MemberReport, ...]
    progress: Progress
    finished: Finished | None = None
    groups: tuple[GroupReport, ...] = ()

    @property
    def session(self) -> SessionReport | None:
        """The default group's."""
        return self.groups[0].session if self.groups else None

    def group(self, name: str) -> GroupReport | None:
        """What is told of the sync group `name`."""
        return next((group for group in self.groups if group.name == name), None)
