"""The coordinator's report to the operator: members, sessions, progress, result.

ValueError of a part says which number cannot be true: the operator writes them into statuses.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.ids import SessionId, check_counts
from rollcall_protocol.wire.learning import LearningReport
from rollcall_protocol.wire.printable_text import one_line
from rollcall_protocol.wire.reward_errors import RewardFailure

KEPT_SESSIONS = 20  # the newest ones that a report lists
MAX_SECONDS = 253_402_300_799.0  # of Unix time: the end of the year 9999, the last that has a date


class MemberState(StrEnum):
    """State of a member of the roster, as the coordinator sees it."""

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
    """The observation for which a member was excluded."""

    CONNECTION_LOST = "ConnectionLost"  # its stream ended
    HEARTBEAT_MISSED = "HeartbeatMissed"  # no bytes arrived on its stream in time
    ENGINE_ERROR = "EngineError"  # its sync engine failed
    ACK_TIMEOUT = "AckTimeout"  # it did not answer a message in time
    REFUSED = "Refused"  # it follows another session
    NOT_REGISTERED = "NotRegistered"  # it is on the roster and opens no stream
    BAD_MESSAGES = "BadMessages"  # it sent several messages that cannot be true
    WRONG_WEIGHTS = "WrongWeights"  # another member got other weights from it, or says so
    WRONG_REWARDS = "WrongRewards"  # its samples score otherwise at the trainer
    LEFT_ROSTER = "LeftRoster"  # the operator removed it before its stream ended


class TimeBound(StrEnum):
    """A bound of the membership protocol, by the path of its setting in the job's spec."""

    SILENCE = "membership.suspectAfterMilliseconds"
    PREPARE = "membership.ackTimeoutSeconds"
    JOIN = "weightSync.joinTimeoutSeconds"
    STAGE = "weightSync.stageTimeoutSeconds"
    COMMIT = "weightSync.commitTimeoutSeconds"


UNTRUSTED = frozenset(
    {
        SuspicionCause.BAD_MESSAGES,
        SuspicionCause.WRONG_WEIGHTS,
        SuspicionCause.WRONG_REWARDS,
    }
)
"""Causes for which a pod stays excluded until the operator has replaced it."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """State of one member. `reason` is why it is not InSync, `cause` why it is a Suspect.

    `version` is the number that it serves, `running` its leased prompts (None: not reported).
    """

    pod_uid: str
    pod: str
    pool: str
    state: MemberState
    version: int | None = None
    reason: str = ""
    cause: SuspicionCause | None = None
    running: int | None = None

    def __post_init__(self) -> None:
        """The reason may be the member's own words."""
        check_counts(version=self.version, running=self.running)
        object.__setattr__(self, "reason", one_line(self.reason))

    @property
    def why(self) -> str:
        """Cause and reason in one line."""
        return f"{self.cause}: {self.reason}" if self.cause else self.reason


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session that became usable at `time` (Unix seconds), `seconds` after its `cause`."""

    session: SessionId
    cause: SessionCause
    members: int
    seconds: float
    detail: str = ""
    time: float = 0.0

    def __post_init__(self) -> None:
        """The detail may be a member's own words."""
        check_counts(members=self.members)
        _check_seconds(seconds=self.seconds, time=self.time)
        object.__setattr__(self, "detail", one_line(self.detail))


@dataclass(frozen=True, slots=True)
class LostSessions:
    """`sessions` in a row ended, the last `seconds` after the first, and no version was published.

    `bound` is the one that passed last (None: the engine failed at once), `detail` what happened.
    """

    sessions: int
    seconds: float
    bound: TimeBound | None
    detail: str

    def __post_init__(self) -> None:
        """The detail may be a member's own words."""
        check_counts(sessions=self.sessions)
        _check_seconds(seconds=self.seconds)
        object.__setattr__(self, "detail", one_line(self.detail))


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of training. `rollout_reward` is the mean over the rollouts' own samples.

    `paused` is the reason why training waits, `warning` a problem that does not stop it.
    `learning`: whether it gets anywhere, None without rewards or while too few steps are known.
    `steps_alike`: the newest steps in a row in which no sample was better than another of its
    prompt.
    """

    step: int
    max_steps: int
    weight_version: int
    rollout_reward: float | None
    paused: str = ""
    warning: str = ""
    learning: LearningReport | None = None
    steps_alike: int = 0

    def __post_init__(self) -> None:
        """Of what arrives, too."""
        check_counts(
            step=self.step,
            max_steps=self.max_steps,
            weight_version=self.weight_version,
            steps_alike=self.steps_alike,
        )
        if self.rollout_reward is not None and not math.isfinite(self.rollout_reward):
            raise ValueError(f"rollout_reward is {self.rollout_reward}, and must be finite")


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Training ended at `step`: after `max_steps`, or for `error`."""

    step: int
    error: str = ""

    def __post_init__(self) -> None:
        """Of what arrives, too."""
        check_counts(step=self.step)


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A sync group: the epoch of its roster, its last usable session, and how many there were.

    `formed`: that session stands for the roster. Its own epoch may be older: a roster that leaves
    its seats as they are keeps it. `sessions` are the last KEPT_SESSIONS, oldest first.
    `lost_sessions`: sessions end again and again, so that no version is published.
    """

    name: str
    epoch: int
    session: SessionReport | None
    rebuilds: int
    formed: bool = False
    sessions: tuple[SessionReport, ...] = ()
    lost_sessions: LostSessions | None = None

    def __post_init__(self) -> None:
        """Of what arrives, too."""
        check_counts(epoch=self.epoch, rebuilds=self.rebuilds)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The whole state of a job, sent to the operator first and after each change.

    The default group comes first in `groups`. A group whose members stay the same keeps its epoch
    while the job's grows. `reward_failure` is an error of the reward function that still happens.
    """

    pod_uid: str
    boot: int
    roster_epoch: int
    roster_digest: str
    members: tuple[MemberReport, ...]
    progress: TrainingProgress
    finished: TrainingResult | None = None
    groups: tuple[GroupReport, ...] = ()
    reward_failure: RewardFailure | None = None

    def __post_init__(self) -> None:
        """Of what arrives, too."""
        check_counts(boot=self.boot, roster_epoch=self.roster_epoch)

    @property
    def session(self) -> SessionReport | None:
        """The default group's last usable session."""
        return self.groups[0].session if self.groups else None

    def group(self, name: str) -> GroupReport | None:
        """Report of the sync group `name`, None if there is none."""
        return next((group for group in self.groups if group.name == name), None)


def _check_seconds(**times: float) -> None:
    for name, seconds in times.items():
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"{name} is {seconds:g}, and must be from 0 to {MAX_SECONDS:g}")
