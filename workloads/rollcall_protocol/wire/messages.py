"""All messages between coordinator, members and operator, as frozen dataclasses.

`dumps` and `loads` add and read a `type` field. Streams are authenticated once, when opened; what
must be fenced carries the session (or, for prompts, the lease) in each message.
"""

import typing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from rollcall_protocol.pod_contract import AGENT_PORT
from rollcall_protocol.wire.ids import MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.json_codec import (
    decode,
    decode_changes,
    from_typed_json,
    to_typed_json,
)
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_protocol.wire.weight_manifest import WeightManifest

# --- member -> coordinator ---------------------------------------------------------------------


class AckPhase(StrEnum):
    """The steps of a session and of a publication that are acknowledged one by one."""

    PREPARE = "prepare"
    JOIN = "join"
    STAGE = "stage"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a member's stream. `descriptor` is the sync engine's, base64.

    `held` is the version it serves, `session` the highest it has seen, `address` the pod's IP.
    `sender` is the rank of a trainer that sends its own part of the weights; a rollout has none.
    Rank 0 is the coordinator itself. At `weights_port` newcomers fetch weights, and a rollout is
    asked for responses. `shard` names
    the part of the weights that the member holds, empty for all; members of one shard hold the same
    part. One that `generates` no responses gets weights alone.
    """

    job_uid: str
    group: str
    member: MemberId
    pod: str
    pool: str
    address: str
    descriptor: str
    session: SessionId | None = None
    held: Version | None = None
    sender: int | None = None
    shard: str = ""
    weights_port: int = AGENT_PORT
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Ack:
    """Outcome of one phase. `error` is empty when it went well; `version` with STAGE, COMMIT.

    `own_fault`: the cause lies in this member (digest, memory), so that it is excluded. It is
    false for a collective that failed because of a peer. `source` is the member that weights with a
    wrong digest were read from, where the engine knows it. `none_joined`, of a trainer rank with
    JOIN: its join failed before that of any other member could end well.
    """

    session: SessionId
    phase: AckPhase
    version: Version | None = None
    error: str = ""
    own_fault: bool = False
    source: MemberId | None = None
    none_joined: bool = False


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A newcomer serves `version`, which it fetched from a donor; or could not, for `error`.

    `wrong_donors` are those that sent other weights than the manifest of CatchUp describes.
    """

    version: Version
    error: str = ""
    wrong_donors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionRefused:
    """A message of an older session was refused; `held` is the session that the member holds."""

    session: SessionId
    held: SessionId


@dataclass(frozen=True, slots=True)
class PromptCredit:
    """The rollout can take `prompts` more prompts, in addition to earlier credits."""

    prompts: int


@dataclass(frozen=True, slots=True)
class Draining:
    """The rollout takes no new prompts and exits within `seconds`."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """Progress of all leases of a rollout; a lease that only waits has an empty report."""

    reports: tuple[PartialReport, ...]


@dataclass(frozen=True, slots=True)
class PromptLeaseReturned:
    """A draining rollout returns a lease unfinished, after a last GenerationProgress."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class SnapshotPartReady:
    """A sender's part of the trainer's `number`-th snapshot of the weights is ready.

    `part` is its manifest; `delta` that of the bytes which turn the former snapshot's part into it,
    None if these are too many.
    """

    number: int
    part: WeightManifest
    delta: WeightManifest | None = None


@dataclass(frozen=True, slots=True)
class PartDigests:
    """The BLAKE3 digests of a sender's part of `version`, in answer to DigestsWanted; None if it
    does not hold that part any more.
    """

    version: Version
    digests: tuple[str, ...] | None


# --- coordinator -> member ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a session: its rank follows from its position; senders come first."""

    member: MemberId
    address: str
    descriptor: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """Drop the older engine session and get ready for this one. Acknowledged.

    The first `senders` seats are the trainer's.
    """

    session: SessionId
    seats: tuple[Seat, ...]
    senders: int = 1


@dataclass(frozen=True, slots=True)
class Join:
    """Join the communicator of `session` (collective for group engines). Acknowledged.

    `stretch`: how many times their settings the engine's own bounds are in this session.
    """

    session: SessionId
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class SessionReady:
    """All seats have joined: the session is usable."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class WeightDelta:
    """Sent instead of a whole version: `manifest` describes the bytes that turn `base` into the
    version, in as many parts as there are senders.
    """

    base: Version
    manifest: WeightManifest


@dataclass(frozen=True, slots=True)
class Stage:
    """Receive `version` beside the served weights and check it. Acknowledged."""

    session: SessionId
    version: Version
    manifest: WeightManifest
    delta: WeightDelta | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Serve the staged `version` from now on. Acknowledged."""

    session: SessionId
    version: Version


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Fetch `version` from one of `donors` (host:port, best first), apply it, send CaughtUp.

    `manifest` describes the version, as the trainer made it: donors are not believed. A donor of
    several addresses, joined by "+", has one part of the version at each. `tickets` has
    what to show to each donor, in the same form.
    """

    version: Version
    manifest: WeightManifest
    donors: tuple[str, ...]
    tickets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TicketKey:
    """First message of a stream: by this `key` (hex) the member knows tickets for its weights.

    Only this member and the coordinator have it.
    """

    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VersionAssigned:
    """To a sender: the `number`-th snapshot is `version`; newcomers may fetch it from here."""

    number: int
    version: Version


@dataclass(frozen=True, slots=True)
class DigestsWanted:
    """To a sender: answer with the PartDigests of `version`, which a newcomer is to fetch."""

    version: Version


@dataclass(frozen=True, slots=True)
class PromptLease:
    """One prompt to sample `group_size` responses for; completions quote `lease_id`.

    `partial` are the responses that another rollout has begun, to be continued. `row` is what the
    reward function may read beside the tokens: values of the prompt's data set by column.
    """

    lease_id: str
    prompt: int
    tokens: tuple[int, ...]
    group_size: int
    seed: int
    partial: PartialResponses | None = None
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PromptLeaseRevoked:
    """Stop working on `lease_id`; its completion would be a duplicate."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class ReconnectRequest:
    """To a member's own port, by anybody: look whether the coordinator is another pod by now.

    `address` and `pod_uid` are for the log: a member connects to its coordinator alone.
    """

    address: str
    pod_uid: str


# --- completions (their own listener) ----------------------------------------------------------


ALONE = -1
"""In the place of a trajectory's number: the sample is all of one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response. Each token has its behaviour log-probability and its weight version, or 0 and
    NOT_SAMPLED if an environment gave it.

    For people to look at: `parts` are the numbers of the parts of the reward, without weights and
    in the job's order, none if it is no sum; `seconds` is how long the rollout took that finished
    the response.

    `trajectory`: samples of one number are parts of one trajectory, and have its reward. ALONE: the
    sample is all of one.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reward: float
    parts: tuple[float, ...] = ()
    seconds: float = 0.0
    trajectory: int = ALONE


@dataclass(frozen=True, slots=True)
class Completion:
    """All samples of one lease; idempotent by `lease_id`, `version` is the oldest token's.

    `reward_errors` are about samples whose reward is not usable, and 0 here. Unless such a reward
    counts as 0, the samples after the first of these are not scored.
    """

    job_uid: str
    member: MemberId
    lease_id: str
    version: Version
    samples: tuple[Sample, ...]
    reward_errors: tuple[RewardError, ...] = ()


MemberMessage = (
    Hello
    | Ack
    | CaughtUp
    | SessionRefused
    | PromptCredit
    | Draining
    | GenerationProgress
    | PromptLeaseReturned
    | SnapshotPartReady
    | PartDigests
)
SessionMessage = Prepare | Join | SessionReady | Stage | Commit | CatchUp
CoordinatorMessage = (
    SessionMessage | TicketKey | VersionAssigned | DigestsWanted | PromptLease | PromptLeaseRevoked
)
MachineMessage = Ack | CaughtUp | SessionRefused | Draining  # for the coordinator's machine
WireMessage = (
    MemberMessage
    | CoordinatorMessage
    | ReconnectRequest
    | Completion
    | JobSnapshot
    | ServingRollouts
)

MACHINE_MESSAGES: tuple[type[MachineMessage], ...] = typing.get_args(MachineMessage)
MEMBER_MESSAGES: tuple[type[MemberMessage], ...] = typing.get_args(MemberMessage)
COORDINATOR_MESSAGES: tuple[type[CoordinatorMessage], ...] = typing.get_args(CoordinatorMessage)

M = TypeVar("M")


def dumps(message: WireMessage) -> str:
    """One JSON object on one line, with the message's name in `type`."""
    return to_typed_json(message)


def loads(text: str | bytes, expected: type[M] | tuple[type[M], ...]) -> M:
    """Read a message of one of the `expected` classes. CodecError names the field that is wrong."""
    cls, body = from_typed_json(text, expected if isinstance(expected, tuple) else (expected,))
    return decode(cls, body)


class RepeatedMessages(Generic[M]):
    """Messages of one class, of which each mostly says what the one before has said."""

    def __init__(self, cls: type[M]) -> None:
        self._cls = cls
        self._before: tuple[dict[str, Any], M] | None = None

    def loads(self, text: str | bytes) -> M:
        """As the function `loads`; what is the same as before is not decoded again."""
        _, body = from_typed_json(text, (self._cls,))
        if self._before is None:
            message = decode(self._cls, body)
        else:
            before, value = self._before
            message = decode_changes(self._cls, body, before=before, value=value)
        self._before = body, message
        return message
