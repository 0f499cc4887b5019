"""What the coordinator tells the operator: one JSON object a line, encoded as `messages` says."""

from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.ids import SessionId

KEPT_SESSIONS = 20  # so many are told of, however late somebody asks


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


class SuspicionCause(StrEnum):
    """What showed that something is wrong with a member."""

    CONNECTION_LOST = "ConnectionLost"  # its stream ended
    HEARTBEAT_MISSED = "HeartbeatMissed"  # nothing was heard on its stream for the bound
    ENGINE_ERROR = "EngineError"  # its sync engine failed
    ACK_TIMEOUT = "AckTimeout"  # it was asked and did not answer in time
    REFUSED = "Refused"  # it follows another session
    NOT_REGISTERED = "NotRegistered"  # on the roster, and does not come
    LEFT_ROSTER = "LeftRoster"  # the operator saw it go before its stream showed it


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The state of one member; `reason` says why when it is not InSync, `cause` what showed that
    a Suspect is one. `running` counts the prompts that it has in hand, None when that is not told.
    """

    pod_uid: str
    pod: str
    pool: str
    state: MemberState
    version: int | None = None
    reason: str = ""
    cause: SuspicionCause | None = None
    running: int | None = None

    @property
    def why(self) -> str:
        """Cause and reason in one line."""
        return f"{self.cause}: {self.reason}" if self.cause else self.reason


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session is usable. `seconds` from its cause to now; `time` is now, Unix seconds."""

    session: SessionId
    cause: SessionCause
    members: int
    seconds: float
    detail: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where training stands; `rollout_reward` is the mean over samples drawn by rollouts.

    `paused` says why it waits, `warning` what is wrong though it goes on.
    """

    step: int
    max_steps: int
    weight_version: int
    rollout_reward: float | None
    paused: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The trainer did its `max_steps` (error empty) or gave up."""

    step: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A sync group: the epoch of its roster, its last usable session, and how many there were.

    `formed`: that session stands for the roster. Its own epoch may be older: a roster that leaves
    its seats as they are keeps it. `sessions` are the last KEPT_SESSIONS, oldest first.
    """

    name: str
    epoch: int
    session: SessionReport | None
    rebuilds: int
    formed: bool = False
    sessions: tuple[SessionReport, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """First line of the operator's stream and again after each change: the whole state.

    The default one comes first in `groups`. A group whose members stay the same keeps its epoch
    while the job's goes up.
    """

    pod_uid: str
    boot: int
    roster_epoch: int
    roster_digest: str
    members: tuple[MemberReport, ...]
    progress: TrainingProgress
    finished: TrainingResult | None = None
    groups: tuple[GroupReport, ...] = ()

    @property
    def session(self) -> SessionReport | None:
        """The default group's."""
        return self.groups[0].session if self.groups else None

    def group(self, name: str) -> GroupReport | None:
        """What is told of the sync group `name`."""
        return next((group for group in self.groups if group.name == name), None)
