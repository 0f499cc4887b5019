"""Every message survives its way over the wire; others are refused."""

import json
import math
from dataclasses import replace

import pytest

from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.job_snapshot import (
    GroupReport,
    JobSnapshot,
    MemberReport,
    MemberState,
    SessionCause,
    SessionReport,
    SuspicionCause,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_protocol.wire.messages import (
    MEMBER_MESSAGES,
    Ack,
    AckPhase,
    CatchUp,
    CaughtUp,
    Commit,
    Completion,
    DigestsWanted,
    Draining,
    GenerationProgress,
    Hello,
    Join,
    PartDigests,
    Prepare,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    ReconnectRequest,
    RepeatedMessages,
    Sample,
    Seat,
    SessionReady,
    SessionRefused,
    SnapshotPartReady,
    Stage,
    TicketKey,
    VersionAssigned,
    WeightDelta,
    WireMessage,
    dumps,
    loads,
)
from rollcall_protocol.wire.partial_responses import PartialReport, PartialResponses, Response
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_protocol.wire.weight_manifest import BucketCheck, TensorSpec, WeightManifest
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

MEMBER, SESSION, VERSION = MemberId("uid", "boot"), SessionId(3, 1, 2), Version(Lineage(1, 2), 7)
MANIFEST = WeightManifest((TensorSpec("w", "bfloat16", (2, 3), 0, 12),), 12, 8, made_up(1, 2))
CHECKSUMMED = replace(MANIFEST, check=BucketCheck.XXH3)
LEARNING = LearningReport(LearningState.RESPONSES_CUT_OFF, 3, 22, low=0, high=0.5, share=1)
RESPONSE = Response((1, 2), (-0.5, -1.25), (7, 7), finished=True)
REPORTED = SessionReport(SESSION, SessionCause.MEMBER_LOST, 3, 0.25, "a: ConnectionLost", 12.5)
LOST = MemberReport("uid", "a", "pool", MemberState.SUSPECT, 6, "x", SuspicionCause.REFUSED, 2)
MESSAGES: list[WireMessage] = [
    Hello("job", "default", MEMBER, "a", "pool", "10.0.0.1", "eng", SESSION, VERSION, 1, "0/2"),
    Ack(SESSION, AckPhase.STAGE, VERSION, "digest", own_fault=True),
    CaughtUp(VERSION, "no donor"),
    SessionRefused(SESSION, held=SessionId(4, 1, 1)),
    PromptCredit(3),
    Draining("scaled down", 30.0),
    GenerationProgress((PartialReport("1", VERSION, (4,), (RESPONSE,)), PartialReport("2"))),
    PromptLeaseReturned("1"),
    SnapshotPartReady(5, MANIFEST, MANIFEST),
    PartDigests(VERSION, made_up(1, 2)),
    Prepare(SESSION, (Seat(MEMBER, "10.0.0.1", "eng"),), 1),
    Join(SESSION),
    SessionReady(SESSION),
    Stage(SESSION, VERSION, CHECKSUMMED, WeightDelta(VERSION, MANIFEST)),
    Commit(SESSION, VERSION),
    TicketKey("ab"),
    CatchUp(VERSION, MANIFEST, ("10.0.0.1:7072",), ("ticket",)),
    VersionAssigned(5, VERSION),
    DigestsWanted(VERSION),
    PromptLease("1", 4, (1, 2), 2, 9, PartialResponses(VERSION, (RESPONSE, RESPONSE))),
    PromptLeaseRevoked("1"),
    ReconnectRequest("10.0.0.1", "uid"),
    ServingRollouts((ServingRollout("a", "10.0.0.2:7072", "ticket"),)),
    Completion("job", MEMBER, "1", VERSION, (Sample((1,), (-0.5,), (7,), 1.0),)),
    JobSnapshot(
        pod_uid="uid",
        boot=2,
        roster_epoch=3,
        roster_digest="d",
        members=(LOST,),
        progress=TrainingProgress(1, 9, 7, None, "paused", "warning", LEARNING, 3),
        finished=TrainingResult(9, "error"),
        groups=(GroupReport("default", 3, REPORTED, 2, formed=True, sessions=(REPORTED,)),),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: WireMessage) -> None:
    line = dumps(message)
    assert "\n" not in line
    assert json.loads(line)["type"] == type(message).__name__
    assert loads(line, type(message)) == message


def test_every_message_is_among_these() -> None:
    kinds = {type(message) for message in MESSAGES}
    assert kinds >= set(MEMBER_MESSAGES)
    assert len(kinds) == len(MESSAGES) == len(WireMessage.__args__)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "not JSON"),
        ("[1]", "type: None is not one of"),
        ('{"prompts": 1}', "type: None is not one of"),
        ('{"type": "Nope", "prompts": 1}', "type: 'Nope' is not one of"),
        ('{"type": "Commit", "prompts": 1}', "type: 'Commit' is not one of"),
        ('{"type": ["PromptCredit"], "prompts": 1}', "type: "),
        ('{"type": "PromptCredit", "prompts": "1"}', "PromptCredit.prompts: expected int, got str"),
        ('{"type": "PromptCredit", "prompts": 1, "more": 2}', "PromptCredit.more: unknown field"),
        ('{"type": "PromptCredit"}', "PromptCredit.prompts: missing"),
    ],
)
def test_other_messages_are_refused(text: str, error: str) -> None:
    with pytest.raises(CodecError, match=f"^{error}"):
        loads(text, MEMBER_MESSAGES)


def test_responses_whose_lists_differ_in_length_are_refused() -> None:
    reports = '[{"lease_id": "1", "since": [0, 0], "responses": [%s]}]'
    whole = '{"tokens": [1], "logprobs": [-0.5], "versions": [7]}'
    torn = '{"tokens": [1], "logprobs": [], "versions": [7]}'
    for responses, error in ((f"{whole}, {torn}", "differ in length"), (whole, "since must have")):
        text = f'{{"type": "GenerationProgress", "reports": {reports % responses}}}'
        with pytest.raises(CodecError, match=error):
            loads(text, GenerationProgress)


def test_a_message_that_repeats_most_of_the_one_before_is_read_whole() -> None:
    session = SessionReport(SessionId(3, 1, 1), SessionCause.NEW_ROSTER, members=2, seconds=0.5)
    first = JobSnapshot(
        pod_uid="uid",
        boot=1,
        roster_epoch=3,
        roster_digest="d",
        members=(MemberReport("p", "pod", "pool", MemberState.IN_SYNC, version=1),),
        progress=TrainingProgress(step=1, max_steps=9, weight_version=1, rollout_reward=0.5),
        groups=(GroupReport("default", 3, session, 1, sessions=(session,)),),
    )
    step = replace(first.progress, step=2)
    gone = replace(first.members[0], state=MemberState.GONE, reason="left")
    messages = RepeatedMessages(JobSnapshot)
    for said in (
        first,
        replace(first, progress=step),
        replace(first, progress=step, members=(gone,)),
        replace(first, progress=step, members=(), groups=()),
        first,
    ):
        assert messages.loads(dumps(said)) == said
    last = json.loads(dumps(first))
    del last["groups"]  # it has a default
    assert messages.loads(json.dumps(last)) == replace(first, groups=())


def test_a_trainer_of_before_the_report_of_learning_is_understood() -> None:
    progress = TrainingProgress(step=1, max_steps=9, weight_version=1, rollout_reward=0.5)
    said = json.loads(dumps(JobSnapshot("uid", 1, 3, "d", (), progress)))
    del said["progress"]["learning"]
    assert loads(json.dumps(said), JobSnapshot).progress == progress


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_step": 30},
        {"first_step": -1},
        {"high": math.inf},
        {"low": math.nan},
        {"share": 1.5},
        {"state": "Asleep"},
    ],
    ids=str,
)
def test_a_report_of_learning_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    progress = TrainingProgress(1, 9, 1, 0.5, learning=LEARNING)
    said = json.loads(dumps(JobSnapshot("uid", 1, 3, "d", (), progress)))
    said["progress"]["learning"] |= wrong
    with pytest.raises(CodecError, match=r"progress\.learning"):
        loads(json.dumps(said), JobSnapshot)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("boot", "one", "JobSnapshot.boot: expected int, got str"),
        ("progress", {"step": "x"}, "JobSnapshot.progress.step: expected int, got str"),
        ("surprise", 1, "JobSnapshot.surprise: unknown field"),
        ("type", "Hello", "type: 'Hello' is not one of"),
    ],
)
def test_what_is_wrong_with_a_repeated_message_is_named(
    name: str, value: object, error: str
) -> None:
    messages = RepeatedMessages(JobSnapshot)
    progress = TrainingProgress(step=1, max_steps=9, weight_version=1, rollout_reward=0.5)
    first = JobSnapshot("uid", 1, 3, "d", (), progress)
    assert messages.loads(dumps(first)) == first
    with pytest.raises(CodecError, match=error):
        messages.loads(json.dumps(json.loads(dumps(first)) | {name: value}))
    assert messages.loads(dumps(first)) == first
