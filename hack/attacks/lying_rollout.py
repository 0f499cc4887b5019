"""Makes a rollout lie: it holds real leases, so that its lies get as far as a lie can.

Import it before the program, with the name of one of LIES in the variable LIE.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import Completion, GenerationProgress, PromptLease, Sample
from rollcall_protocol.wire.partial_responses import PartialReport, Response

if TYPE_CHECKING:
    from rollcall_protocol.membership.member_machine import JoinEngine, MemberEffect

LIE = "LYING_ROLLOUT_LIE"  # a variable of the process
BEYOND = 10**9

Lie = Callable[[Completion], Sequence[Completion]]


def in_first_sample(change: Callable[[Sample], Sample]) -> Lie:
    """A lie about the first sample of a completion alone."""

    def lie(honest: Completion) -> Sequence[Completion]:
        first, *others = honest.samples
        return [replace(honest, samples=(change(first), *others))]

    return lie


def first_of(values: tuple[Any, ...], other: Any) -> tuple[Any, ...]:
    """The values with another one in front."""
    return (other, *values[1:])


LIES: dict[str, Lie] = {
    "reward_that_is_no_number": in_first_sample(lambda s: replace(s, reward=math.nan)),
    "endless_reward": in_first_sample(lambda s: replace(s, reward=math.inf)),
    "huge_reward": in_first_sample(lambda s: replace(s, reward=-1e308)),
    "logprob_that_is_no_number": in_first_sample(
        lambda s: replace(s, logprobs=first_of(s.logprobs, math.nan))
    ),
    "logprob_above_zero": in_first_sample(lambda s: replace(s, logprobs=first_of(s.logprobs, 5.0))),
    "token_outside_the_vocabulary": in_first_sample(
        lambda s: replace(s, tokens=first_of(s.tokens, BEYOND))
    ),
    "token_below_zero": in_first_sample(lambda s: replace(s, tokens=first_of(s.tokens, -1))),
    "version_of_the_future": in_first_sample(
        lambda s: replace(s, versions=first_of(s.versions, BEYOND))
    ),
    "version_below_zero": lambda honest: [
        replace(honest, version=Version(Lineage(1, 1), -7)),
    ],
    "too_many_tokens": in_first_sample(
        lambda s: replace(s, tokens=(1,) * 200, logprobs=(-1.0,) * 200, versions=(0,) * 200)
    ),
    "lengths_that_differ": in_first_sample(lambda s: replace(s, logprobs=s.logprobs[:-1])),
    "too_few_samples": lambda honest: [replace(honest, samples=honest.samples[:1])],
    "no_samples": lambda honest: [replace(honest, samples=())],
    "too_many_samples": lambda honest: [replace(honest, samples=honest.samples * 20)],
    "everything_twice": lambda honest: [honest, honest, honest],
}
PARTIALS = "partial_tokens_outside_the_vocabulary"
DONOR = "wrong_weights_as_a_donor"
JOIN = "join_that_it_did_not_make"
JOIN_WITH_A_SEAT = "join_of_a_seat_alone"


def _lie_about_completions(lie: Lie) -> None:
    from rollcall_runtime.rollout.completion_sender import CompletionSender  # noqa: PLC0415

    offer = CompletionSender.offer

    def offer_lies(sender: CompletionSender, honest: Completion) -> None:
        for completion in lie(honest):
            offer(sender, completion)

    setattr(CompletionSender, "offer", offer_lies)  # noqa: B010 - the program's own method


def _lie_about_partials() -> None:
    """Report tokens for each lease as soon as it comes; another rollout would continue them."""
    from rollcall_runtime.rollout.agent import Agent  # noqa: PLC0415

    take = Agent._take

    def take_and_lie(agent: Agent, lease: PromptLease) -> None:
        take(agent, lease)
        false = Response((BEYOND,), (-1.0,), (0,))
        report = PartialReport(
            lease.lease_id,
            agent._driver.machine.held,
            (0,) * lease.group_size,
            (false,) * lease.group_size,
        )
        agent._stream.send(GenerationProgress((report,)))

    setattr(Agent, "_take", take_and_lie)  # noqa: B010 - the program's own method


def _give_wrong_weights() -> None:
    """Change a byte of each chunk that a newcomer gets."""
    from rollcall_runtime.sync.weights import catch_up  # noqa: PLC0415

    read = catch_up._read

    async def read_and_change(*arguments: Any) -> memoryview:
        chunk = bytearray(await read(*arguments))
        chunk[0] ^= 1
        return memoryview(chunk)

    setattr(catch_up, "_read", read_and_change)  # noqa: B010 - the program's own function


def _join_not_at_all() -> None:
    """Acknowledge each join at once."""
    from rollcall_runtime.membership.driver import MemberDriver  # noqa: PLC0415

    async def lie(driver: MemberDriver, effect: JoinEngine) -> Sequence[MemberEffect]:
        return driver.machine.joined(effect.session)

    setattr(MemberDriver, "_join", lie)  # noqa: B010 - the program's own method


def _join_without_connecting() -> None:
    """Take the seats of a session, connect to no other member, and acknowledge the join."""
    from rollcall_runtime.sync.engines.gloo import GlooSession  # noqa: PLC0415
    from rollcall_runtime.sync.rendezvous import SessionRendezvous  # noqa: PLC0415

    def skip(*_: object) -> None:
        return

    setattr(GlooSession, "_connect", skip)  # noqa: B010 - the program's own methods
    setattr(SessionRendezvous, "wait_for_sender", skip)  # noqa: B010


if LIE in os.environ:
    if os.environ[LIE] == PARTIALS:
        _lie_about_partials()
    elif os.environ[LIE] == DONOR:
        _give_wrong_weights()
    elif os.environ[LIE] == JOIN:
        _join_not_at_all()
    elif os.environ[LIE] == JOIN_WITH_A_SEAT:
        _join_without_connecting()
    else:
        _lie_about_completions(LIES[os.environ[LIE]])
