"""Leases prompts to rollouts and collects their samples into batches for the trainer."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollcall_protocol.job_config import EvaluationConfig, JobConfig
from rollcall_protocol.membership.message_check import MessageFault
from rollcall_protocol.prompts.ledger_state import LedgerState, without_bad_samples
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_ledger import (
    CompletedPrompt,
    PromptLedger,
    RejectionReason,
)
from rollcall_protocol.prompts.sample_check import BadSamples, SampleBounds
from rollcall_protocol.prompts.trajectory_groups import TrajectoryGroups
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import (
    Completion,
    GenerationProgress,
    PromptCredit,
    PromptLease,
    PromptLeaseReturned,
    PromptLeaseRevoked,
    Sample,
)
from rollcall_protocol.wire.reward_errors import RewardFailure
from rollcall_runtime.coordinator.completion_endpoint import CompletionVerdict, longest_completion
from rollcall_runtime.coordinator.metrics import CoordinatorMetrics
from rollcall_runtime.coordinator.prompts import MembersForPrompts, PromptMessage
from rollcall_runtime.coordinator.reward_failures import RewardFailures
from rollcall_runtime.coordinator.trajectory_intake import OPEN_SECONDS, TrajectoryIntake
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

MAX_REPORTS = 4096  # leases in one message; a rollout holds far fewer
MAX_LEASE_NAME = 100  # characters; the coordinator's own are shorter


class PromptDispatcher:
    """Drives the prompt ledger over the members' streams. Belongs to one event loop.

    `source` returns prompt number i, None if it is left out, and `held_out` those of evaluations.
    Samples and tokens beyond `bounds` do not count; `members.suspicious` is called with their
    sender once they have had their effect here. `counted` is called with each completion that
    counts, and its lease.
    """

    def __init__(
        self,
        *,
        config: JobConfig,
        source: Callable[[int], Prompt | None],
        state: LedgerState | None,
        metrics: CoordinatorMetrics,
        bounds: SampleBounds,
        held_out: Callable[[int], Prompt | None] | None = None,
        counted: Callable[[Completion, PromptLease], None] | None = None,
    ) -> None:
        algorithm = config.algorithm
        settings = algorithm.settings
        if config.data.from_front:
            bounds = replace(bounds, given_tokens=True)
        self._config, self._bounds, self._held_out = config, bounds, held_out
        self._metrics, self._counted = metrics, counted
        self._version: Version | None = None  # the newest that rollouts serve
        self._credits: dict[MemberId, int] = {}
        self._evaluation: PromptLedger | None = None
        self._evaluations = 0  # begun so far
        self._ledger = PromptLedger(
            source=source,
            group_size=algorithm.group_size,
            batch=algorithm.prompts_per_step,
            max_concurrent=algorithm.max_concurrent_rollouts,
            max_staleness=algorithm.max_staleness,
            lease_seconds=algorithm.lease,
            seed=config.data.seed,
            state=self._checked(state),
            batches_per_version=config.weight_sync.trigger_parameter_sync_step,
            keep_partial=algorithm.partial_rollout,
            deterministic=algorithm.deterministic,
            uniform_limit=(
                settings.dynamic_sampling_limit * algorithm.prompts_per_step
                if settings.dynamic_sampling
                else 0
            ),
            wait_for_old=settings.off_policy == "wait",
            shared_credits=self._credits,
        )
        metrics.prompts(self._ledger)
        self.trajectories = TrajectoryIntake(
            job_uid=config.uid,
            wanted=config.data.from_front,
            bounds=self._bounds,
            groups=TrajectoryGroups(
                size=algorithm.group_size,
                seconds=OPEN_SECONDS,
                known=state.trajectories if state else (),
            ),
            newest=lambda: self._newest if self._version else None,
            oldest=lambda: self._ledger.oldest_wanted,
            room=lambda: self._ledger.capacity > 0,
            take=self._take_group,
            refused=metrics.refused,
        )
        self.rewards = RewardFailures(config, metrics, self._failure_changed)
        self._members: MembersForPrompts  # since `open`
        self._batch_ready = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # for the next lease that expires

    def open(self, members: MembersForPrompts) -> None:
        """Lease to the members of a coordinator, from now on."""
        self._members = members

    # --- the trainer's side --------------------------------------------------------------------

    def published(self, version: Version) -> None:
        """Rollouts serve `version`: admit more prompts."""
        # Not earlier: a prompt leased before is sampled with the version before.
        self._ledger.published(version)
        self._version = version
        self.dispatch()

    def skip_versions(self, versions: int) -> None:
        """Training begins with weights `versions` newer than the checkpoint's."""
        self._ledger.age_by(versions)

    async def next_batch(self, number: int) -> list[CompletedPrompt]:
        """Wait for `promptsPerStep` completions fresh enough to train version `number`.

        SpecError when the reward function fails for more samples than the job allows.
        """
        while True:
            self.rewards.raise_if_too_many()
            batch = self._ledger.take_batch(number)
            self.dispatch()
            if batch is not None:
                return batch
            self._batch_ready.clear()
            await self._batch_ready.wait()

    async def evaluate(self) -> list[tuple[float, ...]]:
        """Have rollouts answer the held-out prompts; the rewards of each one's samples.

        These leases go out before those for training, with the weights that are served meanwhile.
        RuntimeError without such prompts, before the first version, or during another evaluation;
        SpecError as `next_batch`.
        """
        evaluation, source = self._config.evaluation, self._held_out
        if evaluation is None or source is None:
            raise RuntimeError("this job has no held-out prompts")
        if self._version is None or self._evaluation is not None:
            raise RuntimeError("an evaluation needs a published version, and no other beside it")
        ledger = self._evaluation_ledger(evaluation, source)
        ledger.published(self._version)
        self._evaluation, number = ledger, self._version.number
        try:
            while (answered := ledger.take_batch(number)) is None:
                self.rewards.raise_if_too_many()
                self.dispatch()
                self._batch_ready.clear()
                await self._batch_ready.wait()
        finally:
            self._evaluation = None
            self._revoke(ledger, now=math.inf)
        return [tuple(s.reward for s in item.completion.samples) for item in answered]

    def state(self) -> LedgerState:
        """The ledger's state for a checkpoint."""
        counted = self.trajectories.groups.counted
        return replace(self._ledger.state(), trajectories=counted)

    @property
    def longest_message(self) -> int:
        """Bytes of the longest completion, and of a lease with another rollout's tokens."""
        return longest_completion(self._config, self._bounds)

    @property
    def reward_failure(self) -> RewardFailure | None:
        """The reward error that users should see."""
        return self.rewards.shown

    def running(self) -> Mapping[str, int]:
        """The number of leased prompts by pod uid."""
        return sum((ledger.running_by_pod() for ledger in self._ledgers), Counter[str]())

    # --- rollouts ------------------------------------------------------------------------------

    def member_connected(self, member: MemberId) -> None:
        """A stream opened: its credit starts at 0; the member keeps its leases."""
        self._ledger.reset_credit(member)
        self.rewards.connected(member)

    def member_message(self, member: MemberId, message: PromptMessage) -> None:
        """A message of `member` about prompts arrived."""
        problem = _absurd(message)
        if problem:
            self._metrics.refused(MessageFault.PROMPTS.value)
            self._members.suspicious(member, problem)
        elif isinstance(message, PromptCredit):
            self._ledger.add_credit(member, message.prompts)
        elif isinstance(message, GenerationProgress):
            self._progressed(member, message)
            return
        else:
            for ledger in self._ledgers:
                ledger.return_lease(message.lease_id, member)
            self._batch_ready.set()  # training may have waited for this prompt alone
        self.dispatch()

    def complete(self, completion: Completion) -> CompletionVerdict:
        """Count a completion, or decide why not."""
        if completion.job_uid != self._config.uid:
            return CompletionVerdict.WRONG_JOB
        ledger = self._ledger_of(completion.lease_id, completion.member)
        lease = ledger.lease(completion.lease_id, completion.member)
        bad = None if lease is None else self._bounds.check(completion, lease, newest=self._newest)
        if bad is not None:
            reason = RejectionReason.BAD_SAMPLES
            ledger.reject(completion.lease_id, completion.member, reason)
            self._are_bad(completion.member, bad, what="sample")
            verdict = CompletionVerdict.BAD_SAMPLES
        elif lease is not None and not self.rewards.count(completion, lease):
            ledger.reject(lease.lease_id, completion.member, RejectionReason.NO_REWARD)
            verdict = CompletionVerdict.COUNTED
        elif ledger.complete(replace(completion, reward_errors=())):
            verdict = CompletionVerdict.COUNTED
            if self._counted and lease is not None and not completion.reward_errors:
                self._counted(completion, lease)
        else:
            return CompletionVerdict.DUPLICATE
        self._batch_ready.set()
        self.dispatch()
        return verdict

    def member_disconnected(self, member: MemberId, *, keep_tokens: bool = True) -> None:
        """A stream ended: the next `dispatch` leases its prompts to other members.

        Without `keep_tokens` they do not go on from what it reported.
        """
        self.rewards.disconnected(member)
        for ledger in self._ledgers:
            ledger.rollout_lost(member, keep_tokens=keep_tokens)
        self._batch_ready.set()

    def dispatch(self) -> None:
        """Lease admitted prompts to eligible members that have credit."""
        for ledger in self._leasing:
            for member, lease in ledger.dispatch(self._members.eligible(), time.monotonic()):
                self._members.send(member, lease)
        self._metrics.prompts(self._ledger)
        self._set_timer()

    def close(self) -> None:
        """Cancel the timer of the next deadline: no lease expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- inside --------------------------------------------------------------------------------

    def _failure_changed(self) -> None:
        self._members.failure_changed()

    def _checked(self, state: LedgerState | None) -> LedgerState | None:
        """What a checkpoint holds, without samples and tokens that cannot be trained on."""
        if state is None:
            return None
        left, found = without_bad_samples(state, self._bounds)
        for bad in found:
            self._metrics.refused(f"bad_saved_{bad.fault.value}")
            log.warning("samples of the checkpoint are sampled again: %s", bad.problem)
        return left

    @property
    def _newest(self) -> Version:
        """The newest version that a rollout may serve; RuntimeError before the first lease."""
        if self._version is None:
            raise RuntimeError("no version is published")
        # A rollout may serve the next version before all of them do.
        return replace(self._version, number=self._version.number + 1)

    def _are_bad(self, member: MemberId, bad: BadSamples, *, what: str) -> None:
        """Count by kind, and log with the sender, which should have refused them itself."""
        self._metrics.refused(f"bad_{what}_{bad.fault.value}")
        log.warning("a %s of member %s is refused: %s", what, member, bad.problem, extra=REPEATED)
        self._members.suspicious(member, bad.problem)

    def _progressed(self, member: MemberId, message: GenerationProgress) -> None:
        now = time.monotonic()
        for report in message.reports:
            ledger = self._ledger_of(report.lease_id, member)
            lease = ledger.lease(report.lease_id, member)
            if lease is None:
                self._metrics.refused("late_report")
                self._members.send(member, PromptLeaseRevoked(report.lease_id))
                continue
            bad = self._bounds.check_report(report, lease, newest=self._newest)
            if bad is None:
                ledger.report_progress(report, member, now)
            else:
                self._are_bad(member, bad, what="partial")

    def _set_timer(self) -> None:
        # A timer that is set is early enough: deadlines only move later.
        deadlines = [ledger.next_deadline() for ledger in self._ledgers]
        due = min((d for d in deadlines if d is not None and self._timer is None), default=None)
        if due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for ledger in self._ledgers:
            self._revoke(ledger, now=time.monotonic())
        self._batch_ready.set()
        self.dispatch()

    def _revoke(self, ledger: PromptLedger, *, now: float) -> None:
        for member, lease in ledger.expire(now):
            self._members.send(member, PromptLeaseRevoked(lease))

    @property
    def _ledgers(self) -> list[PromptLedger]:
        """That of an evaluation first, if there is one: it leases first."""
        return [*([self._evaluation] if self._evaluation is not None else []), self._ledger]

    @property
    def _leasing(self) -> list[PromptLedger]:
        """Those that have prompts: of trajectories there are none to lease."""
        from_front = self._config.data.from_front
        return [each for each in self._ledgers if not from_front or each is not self._ledger]

    def _take_group(
        self, tokens: tuple[int, ...], samples: tuple[Sample, ...], oldest: Version
    ) -> None:
        self._ledger.take_group(self._config.uid, tokens, samples, oldest)
        self._metrics.prompts(self._ledger)
        self._batch_ready.set()

    def _ledger_of(self, lease: str, member: MemberId) -> PromptLedger:
        """The one that leased; for a lease that is not current, that of training, which says so."""
        return next((found for found in self._ledgers if found.lease(lease, member)), self._ledger)

    def _evaluation_ledger(
        self, evaluation: EvaluationConfig, source: Callable[[int], Prompt | None]
    ) -> PromptLedger:
        """Leases each prompt once, and takes samples of any version."""
        self._evaluations += 1
        algorithm = self._config.algorithm
        return PromptLedger(
            source=source,
            group_size=evaluation.samples,
            batch=evaluation.prompts,
            max_concurrent=evaluation.prompts,
            max_staleness=0,
            lease_seconds=algorithm.lease,
            seed=self._config.data.seed,
            keep_partial=algorithm.partial_rollout,
            deterministic=algorithm.deterministic,
            shared_credits=self._credits,
            lease_prefix=f"evaluation-{self._evaluations}.",
        )


def _absurd(message: PromptMessage) -> str:
    """Why no rollout can mean this; empty if one can."""
    if isinstance(message, PromptCredit) and not 0 <= message.prompts <= MAX_REPORTS:
        return f"a credit of {message.prompts} prompts"
    if isinstance(message, GenerationProgress) and len(message.reports) > MAX_REPORTS:
        return f"progress of {len(message.reports)} leases in one message"
    longest = max((len(name) for name in _leases(message)), default=0)
    return f"a lease's name of {longest} characters" if longest > MAX_LEASE_NAME else ""


def _leases(message: PromptMessage) -> list[str]:
    if isinstance(message, GenerationProgress):
        return [report.lease_id for report in message.reports]
    return [message.lease_id] if isinstance(message, PromptLeaseReturned) else []
