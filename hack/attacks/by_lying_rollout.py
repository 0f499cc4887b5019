"""Rollouts that were taken over: real ones, with real leases, that lie about their samples."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hack.attacks import lying_rollout
from hack.attacks.attack import attack, expect
from rollcall_protocol.wire.job_snapshot import SuspicionCause
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import in_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hack.attacks.target import AttackedJob
    from rollcall_protocol.wire.job_snapshot import JobSnapshot
    from tests.process.pods import Pod

LIE_SECONDS = 90.0  # from the start of its process to the third lie
BAD_SAMPLES = {
    "reward_that_is_no_number": "bad_sample_reward",
    "endless_reward": "bad_sample_reward",
    "huge_reward": "bad_sample_reward",
    "logprob_that_is_no_number": "bad_sample_logprob",
    "logprob_above_zero": "bad_sample_logprob",
    "token_outside_the_vocabulary": "bad_sample_token",
    "token_below_zero": "bad_sample_token",
    "version_of_the_future": "bad_sample_version",
    "version_below_zero": "bad_sample_version",
    "too_many_tokens": "bad_sample_length",
    "lengths_that_differ": "bad_sample_length",
    "too_few_samples": "bad_sample_group_size",
    "no_samples": "bad_sample_group_size",
    "too_many_samples": "bad_sample_group_size",
    lying_rollout.PARTIALS: "bad_partial_token",
}


@contextlib.asynccontextmanager
async def lying_pod(job: AttackedJob, lie: str) -> AsyncIterator[Pod]:
    """A rollout beside the honest ones that tells one kind of lie."""
    pod = await job.job.launch(imports=lying_rollout.__name__, **{lying_rollout.LIE: lie})
    await job.push_roster(EpochCause.MEMBERS_JOINED)
    try:
        yield pod
    finally:
        job.job.rollouts.remove(pod)
        await job.push_roster(EpochCause.MEMBER_LOST)
        await pod.close()


def is_excluded(pod: Pod, snapshot: JobSnapshot) -> bool:
    """Whether the coordinator excludes the rollout for its messages."""
    return any(
        member.pod_uid == pod.uid and member.cause is SuspicionCause.BAD_MESSAGES
        for member in snapshot.members
    )


def liar(lie: str) -> Callable[[AttackedJob], Awaitable[None]]:
    """The attack by a rollout that tells one kind of lie."""

    async def run(job: AttackedJob) -> None:
        async with lying_pod(job, lie) as pod:
            try:
                await job.job.operator.until(lambda s: is_excluded(pod, s), seconds=LIE_SECONDS)
            except AssertionError:
                expect(False, f"a rollout that lies stays a member: {pod.log()[-300:]}")

    run.__doc__ = (
        f"A rollout sends a {lie.replace('_', ' ')} for its leases: each is refused and counted by "
        "kind, and the third excludes the rollout."
    )
    return run


for _lie, _kind in BAD_SAMPLES.items():
    _quick = _lie == "reward_that_is_no_number"
    attack("member", _kind, name=f"liar_{_lie}", seconds=150, quick=_quick)(liar(_lie))


def joiner(lie: str) -> Callable[[AttackedJob], Awaitable[None]]:
    """The attack by a rollout that says it joined, and did not."""

    async def run(job: AttackedJob) -> None:
        honest = {pod.uid for pod in job.job.rollouts}
        async with lying_pod(job, lie) as pod:
            suspected: set[str] = set()

            def is_out(snapshot: JobSnapshot) -> bool:
                suspected.update(m.pod_uid for m in snapshot.members if m.cause is not None)
                return is_excluded(pod, snapshot)

            try:
                await job.job.operator.until(is_out, seconds=LIE_SECONDS)
            except AssertionError:
                expect(False, f"a rollout that did not join stays: {pod.log()[-300:]}")
            expect(not suspected & honest, "an honest rollout was excluded")

    run.__doc__ = (
        f"A rollout acknowledges a {lie.replace('_', ' ')}: the trainer's own join shows it, the "
        "rollout is excluded, and the honest ones keep their places."
    )
    return run


for _lie in (lying_rollout.JOIN, lying_rollout.JOIN_WITH_A_SEAT):
    _quick = _lie == lying_rollout.JOIN
    attack("member", "bad_join", name=f"liar_{_lie}", seconds=150, quick=_quick)(joiner(_lie))


@attack("member", "duplicate_completion", seconds=150)
async def liar_that_sends_everything_twice(job: AttackedJob) -> None:
    """A rollout sends each completion three times: one counts, the others are counted as such."""
    async with lying_pod(job, "everything_twice") as pod:

        async def many_are_dropped() -> bool:
            if not pod.running:
                return False
            with contextlib.suppress(OSError):
                values = await job.metrics(pod)
                return values.get("completions_total{dropped}", 0.0) >= 20
            return False

        await job.eventually(many_are_dropped, "doubled completions are dropped", seconds=90)


@attack("member", "wrong_weights", seconds=150)
async def donor_of_wrong_weights(job: AttackedJob) -> None:
    """A rollout gives newcomers weights with a bit changed: refused, counted; they fetch others."""
    # Newcomers ask donors in the order of their addresses as text: 10 is before 4.
    job.job._given = max(job.job._given, 9)
    async with lying_pod(job, lying_rollout.DONOR) as liar_pod:
        await job.job.operator.until(lambda s: in_sync(s, liar_pod), seconds=LIE_SECONDS)
        newcomer = await job.job.launch()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        try:
            await job.job.operator.until(lambda s: in_sync(s, newcomer), seconds=LIE_SECONDS)
        except AssertionError:
            expect(False, "a newcomer did not get right weights from another donor")
        finally:
            job.job.rollouts.remove(newcomer)
            await job.push_roster(EpochCause.MEMBER_LOST)
            await newcomer.close()
