"""What a rollout says of unusable rewards is bounded before anybody reads it."""

import pytest

from rollcall_protocol.prompts.sample_check import SampleBounds, SampleFault
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample, dumps, loads
from rollcall_protocol.wire.reward_errors import MAX_TEXT, RewardError, RewardErrorKind

NEWEST = Version(Lineage(1, 1), 7)
LEASE = PromptLease("1.1.1", 0, tokens=(1, 2, 3), group_size=2, seed=0)
SAMPLE = Sample(tokens=(0, 9), logprobs=(-0.5, 0.0), versions=(0, 7), reward=0.0)
TEXT = "x" * MAX_TEXT


def error(sample: int, *, value: str = "nan", file: str = "f.py", line: int = 3) -> RewardError:
    return RewardError(sample, RewardErrorKind.NOT_FINITE, value, file, line)


def sent(*errors: RewardError) -> Completion:
    member = MemberId("pod", "b")
    return Completion("job", member, LEASE.lease_id, NEWEST, (SAMPLE, SAMPLE), errors)


def fault(completion: Completion) -> SampleFault | None:
    found = SampleBounds(vocabulary=10).check(completion, LEASE, newest=NEWEST)
    return found.fault if found else None


@pytest.mark.parametrize(
    "errors", [(), (error(1),), (error(0), error(1, value=TEXT, file="", line=0))]
)
def test_errors_of_samples_in_their_order_are_taken(errors: tuple[RewardError, ...]) -> None:
    assert fault(sent(*errors)) is None
    assert loads(dumps(sent(*errors)), Completion) == sent(*errors)


@pytest.mark.parametrize(
    "errors",
    [
        (error(2),),
        (error(-1),),
        (error(1), error(0)),
        (error(0), error(0)),
        (error(0, value=TEXT + "x"),),
        (error(0, value="two\nlines"),),
        (error(0, file=TEXT + "x"),),
        (error(0, file="\x1b[31m"),),
        (error(0, line=-1),),
        (error(0, line=10**9),),
    ],
)
def test_anything_else_is_a_bad_completion(errors: tuple[RewardError, ...]) -> None:
    assert fault(sent(*errors)) is SampleFault.REWARD_ERROR
