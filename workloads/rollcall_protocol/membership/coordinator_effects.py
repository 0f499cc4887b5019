"""What the coordinator's machine asks its driver to do, and the bounds it works with."""

from dataclasses import dataclass

from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause, TimeBound
from rollcall_protocol.wire.messages import SessionMessage


@dataclass(frozen=True, slots=True)
class ProtocolTimeouts:
    """The longest time of each wait, seconds, on an idle machine; on a busy one they stretch to at
    most `stretch_limit` times these.
    """

    settle: float
    ack_timeout: float
    join_timeout: float
    stage_timeout: float
    commit_timeout: float
    stretch_limit: float = 6.0


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send `message` to a member (the trainer's own sender is one)."""

    to: MemberId
    message: SessionMessage


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close the member's stream, so that it registers again."""

    to: MemberId
    reason: str


@dataclass(frozen=True, slots=True)
class MemberSuspected:
    """A member is excluded from the session. `since`: when the message was sent that it did not
    answer (the machine's clock); None when its stream, a report or a roster showed the failure.
    """

    member: MemberId
    cause: SuspicionCause
    reason: str
    since: float | None = None


@dataclass(frozen=True, slots=True)
class WrongWeightsReported:
    """`newcomer` says that `donor` sent it other weights than the trainer made."""

    donor: MemberId
    newcomer: MemberId


@dataclass(frozen=True, slots=True)
class FalseJoin:
    """`member` acknowledged the join of a session that no member has joined."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """`version` is served by all members of the live session, `members` of them."""

    version: Version
    members: int


@dataclass(frozen=True, slots=True)
class SessionFormed:
    """A session is usable."""

    report: SessionReport


@dataclass(frozen=True, slots=True)
class SessionTimedOut:
    """A session has ended because `bound` passed."""

    bound: TimeBound


@dataclass(frozen=True, slots=True)
class CoordinatorSuperseded:
    """`member` says that it follows a later epoch than this coordinator was ever given.

    The driver steps down if another pod is the coordinator by now. Otherwise it excludes the
    member, since a single one could end the trainer by a false word.
    """

    held: SessionId
    member: MemberId


CoordinatorEffect = (
    SendMessage
    | CloseStream
    | MemberSuspected
    | WrongWeightsReported
    | FalseJoin
    | VersionPublished
    | SessionFormed
    | SessionTimedOut
    | CoordinatorSuperseded
)


class RosterRefusedError(ValueError):
    """A roster that the coordinator must not follow; `epoch` is that of the roster it follows."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch
