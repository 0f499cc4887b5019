"""The roster of a sync group: the pods that may be members, decided by the operator."""

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.json_codec import encode

DEFAULT_GROUP = "default"


class EpochCause(StrEnum):
    """Why the operator opened an epoch; kept in status, events and metrics."""

    JOB_STARTED = "JobStarted"
    MEMBERS_JOINED = "MembersJoined"
    MEMBER_LOST = "MemberLost"
    SCALED_DOWN = "ScaledDown"
    COORDINATOR_REPLACED = "CoordinatorReplaced"


@dataclass(frozen=True, slots=True, order=True)
class RosterMember:
    """One rollout pod that may join, in the sync group of its pool."""

    pod_uid: str
    pod: str
    address: str
    pool: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class Roster:
    """The pods that may be members in `epoch`; pushed whole, never as a change.

    The operator's roster is of the whole job and has the default `group`. A group's own roster is
    the part whose members belong to it.
    """

    job_uid: str
    group: str
    epoch: int
    coordinator_uid: str
    cause: EpochCause
    members: tuple[RosterMember, ...] = ()

    @property
    def digest(self) -> str:
        """Hex digest of what makes two rosters of one epoch the same (not the cause)."""
        return roster_digest(self.coordinator_uid, self.members)


def roster_digest(coordinator_uid: str, members: tuple[RosterMember, ...]) -> str:
    """Digest that does not depend on the order of members; 16 hex characters."""
    body = json.dumps([coordinator_uid, encode(tuple(sorted(members)))], sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()[:16]
