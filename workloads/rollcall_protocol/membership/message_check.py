"""What a member's messages must be before the coordinator acts on them.

The bounds follow from the roster, the session's versions and the job. A member that has gone bad,
or somebody with a member's token, must cost the others nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.pod_contract import AGENT_PORT
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import Hello, SnapshotPartReady
from rollcall_protocol.wire.roster import Roster
from rollcall_protocol.wire.weight_manifest import WeightManifest

MAX_DESCRIPTOR = 2**18  # characters of a sync engine's descriptor
MAX_NAME = 253  # characters of a DNS name
MAX_PARTS_AHEAD = 4  # snapshots; a rank holds two


class MessageFault(StrEnum):
    """What is wrong with a message; the label of `rollcall_refused_total`."""

    MALFORMED = "malformed"  # no message of the protocol
    HELLO = "bad_hello"  # it contradicts the roster, or cannot be an address or name
    SENDER = "bad_sender"  # it takes a trainer rank that is none, or another's
    VERSION = "bad_version"  # a version that does not exist yet
    JOIN = "bad_join"  # it says that it joined a session, which none did
    SESSION = "bad_session"  # a session of a coordinator that does not exist
    PART = "bad_part"  # a part of the weights that does not fit the job
    PROMPTS = "bad_prompts"  # credits or reports of more prompts than there can be
    FLOOD = "too_many_messages"  # more than an honest member sends
    UNREAD = "unread_messages"  # it does not read what it is sent
    EXCLUDED = "excluded_member"  # its pod lied (job_snapshot.UNTRUSTED), and is to be replaced


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that is refused; `problem` names the field and the value."""

    fault: MessageFault
    problem: str


def check_hello(
    hello: Hello, *, roster: Roster | None, senders: int, rollout_port: int | None = AGENT_PORT
) -> BadMessage | None:
    """The first problem of a Hello; None if it may register. `senders`: ranks that send.

    Requests go to a rollout at `rollout_port`, and nowhere else that it names; None outside of
    pods, where each has a port of its own.
    """
    names = (hello.member.pod_uid, hello.member.boot_id, hello.pod, hello.address)
    pool = hello.pool if hello.sender is None else "none"  # a trainer rank is of no pool
    if not all(0 < len(name) <= MAX_NAME for name in (*names, pool)):
        problem = f"a name or address is empty or has more than {MAX_NAME} characters"
        return BadMessage(MessageFault.HELLO, problem)
    if max(len(hello.descriptor), len(hello.shard)) > MAX_DESCRIPTOR:
        problem = f"the descriptor or shard has more than {MAX_DESCRIPTOR} characters"
        return BadMessage(MessageFault.HELLO, problem)
    # They are logged, resolved and encoded. UTF-8 has no half of a surrogate pair; JSON may.
    if not all(text.isprintable() for text in (*names, pool, hello.descriptor, hello.shard)):
        problem = "a name, the address, descriptor or shard has characters that cannot be printed"
        return BadMessage(MessageFault.HELLO, problem)
    elsewhere = hello.sender is None and hello.weights_port != (rollout_port or hello.weights_port)
    if elsewhere or not 0 < hello.weights_port < 2**16:
        return BadMessage(MessageFault.HELLO, f"weights_port is {hello.weights_port}")
    listed = {seat.pod_uid: seat for seat in (roster.members if roster else ())}
    seat = listed.get(hello.member.pod_uid)
    if hello.sender is not None:
        if not 0 < hello.sender < senders:
            return BadMessage(MessageFault.SENDER, f"sender {hello.sender} of {senders}")
        if seat is not None:
            problem = f"rollout {seat.pod} says it is trainer rank {hello.sender}"
            return BadMessage(MessageFault.SENDER, problem)
    elif seat is not None and (hello.pod, hello.pool) != (seat.pod, seat.pool):
        problem = f"pod {hello.pod!r} of pool {hello.pool!r} is {seat.pod} of {seat.pool}"
        return BadMessage(MessageFault.HELLO, problem)
    return None


def check_version(
    version: Version | None, *, lineage: Lineage | None, newest: Version | None
) -> BadMessage | None:
    """Whether a member can hold `version`; None if it can.

    `lineage` is the coordinator's own, `newest` its newest version. Those of other lineages are
    unknown here.
    """
    if version is None:
        return None
    future = version.lineage == lineage and (newest is None or version.number > newest.number)
    if version.number < 0 or future:
        problem = f"version {version}, and the newest is {newest}"
        return BadMessage(MessageFault.VERSION, problem)
    return None


def check_part(message: SnapshotPartReady, *, awaited: int, bucket_bytes: int) -> BadMessage | None:
    """Whether a part fits the job; None if it does. `awaited`: the snapshot that is the next."""
    if not 0 <= message.number <= awaited + MAX_PARTS_AHEAD:
        problem = f"snapshot {message.number}, and number {awaited} is awaited"
        return BadMessage(MessageFault.PART, problem)
    for manifest in (message.part, message.delta):
        if manifest is not None and (problem := _unfit(manifest, bucket_bytes)):
            return BadMessage(MessageFault.PART, problem)
    return None


def _unfit(manifest: WeightManifest, bucket_bytes: int) -> str:
    if manifest.bucket_bytes != bucket_bytes:
        return f"buckets of {manifest.bucket_bytes} bytes, and the job's have {bucket_bytes}"
    if manifest.parts:
        return f"a part that consists of {len(manifest.parts)} parts"
    return ""
