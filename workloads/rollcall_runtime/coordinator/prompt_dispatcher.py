"""Leases prompts to rollouts and collects their samples into batches for the trainer."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.prompts.ledger_state import LedgerState
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt, PromptLedger
from rollcall_protocol.wire.ids import MemberId, Version
from rollcall_protocol.wire.messages import (
    Completion,
    CoordinatorMessage,
    GenerationProgress,
    PromptCredit,
    PromptLeaseReturned,
    PromptLeaseRevoked,
)
from rollcall_runtime.coordinator.completion_endpoint import CompletionVerdict
from rollcall_runtime.coordinator.metrics import CoordinatorMetrics

PromptMessage = PromptCredit | GenerationProgress | PromptLeaseReturned


class PromptDispatcher:
    """Drives the prompt ledger over the members' streams. Belongs to one event loop.

    `eligible` returns the members that may get prompts now; `send` sends a message to one.
    """

    def __init__(
        self,
        *,
        config: JobConfig,
        source: Callable[[int], Prompt | None],
        state: LedgerState | None,
        eligible: Callable[[], Sequence[MemberId]],
        send: Callable[[MemberId, CoordinatorMessage], None],
        metrics: CoordinatorMetrics,
    ) -> None:
        algorithm = config.algorithm
        settings = algorithm.composed_settings()
        self._job_uid = config.uid
        self._ledger = PromptLedger(
            source=source,
            group_size=algorithm.group_size,
            batch=algorithm.prompts_per_step,
            max_concurrent=algorithm.max_concurrent_rollouts,
            max_staleness=algorithm.max_staleness,
            lease_seconds=algorithm.lease,
            seed=config.data.seed,
            state=state,
            batches_per_version=config.weight_sync.trigger_parameter_sync_step,
            keep_partial=algorithm.partial_rollout,
            deterministic=algorithm.deterministic,
            uniform_limit=(
                settings.dynamic_sampling_limit * algorithm.prompts_per_step
                if settings.dynamic_sampling
                else 0
            ),
            wait_for_old=settings.off_policy == "wait",
        )
        self._eligible, self._send, self._metrics = eligible, send, metrics
        self._batch_ready = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # for the next lease that expires

    # --- the trainer's side --------------------------------------------------------------------

    def published(self, version: Version) -> None:
        """Rollouts serve `version`: admit more prompts."""
        # Not earlier: a prompt leased before is sampled with the version before.
        self._ledger.published(version)
        self.dispatch()

    def skip_versions(self, versions: int) -> None:
        """Training begins with weights `versions` newer than the checkpoint's."""
        self._ledger.age_by(versions)

    async def next_batch(self, number: int) -> list[CompletedPrompt]:
        """Wait for `promptsPerStep` completions fresh enough to train version `number`."""
        while True:
            batch = self._ledger.take_batch(number)
            self.dispatch()
            if batch is not None:
                return batch
            self._batch_ready.clear()
            await self._batch_ready.wait()

    def state(self) -> LedgerState:
        """The ledger's state for a checkpoint."""
        return self._ledger.state()

    def running(self) -> Mapping[str, int]:
        """The number of leased prompts by pod uid."""
        return self._ledger.running_by_pod()

    # --- rollouts ------------------------------------------------------------------------------

    def member_connected(self, member: MemberId) -> None:
        """A stream opened: its credit starts at 0; the member keeps its leases."""
        self._ledger.reset_credit(member)

    def member_message(self, member: MemberId, message: PromptMessage) -> None:
        """A message of `member` about prompts arrived."""
        if isinstance(message, PromptCredit):
            self._ledger.add_credit(member, message.prompts)
        elif isinstance(message, GenerationProgress):
            self._progressed(member, message)
            return
        else:
            self._ledger.return_lease(message.lease_id, member)
            self._batch_ready.set()  # training may have waited for this prompt alone
        self.dispatch()

    def complete(self, completion: Completion) -> CompletionVerdict:
        """Count a completion, or decide why not."""
        if completion.job_uid != self._job_uid:
            return CompletionVerdict.WRONG_JOB
        if not self._ledger.complete(completion):
            return CompletionVerdict.DUPLICATE
        self._batch_ready.set()
        self.dispatch()
        return CompletionVerdict.COUNTED

    def member_disconnected(self, member: MemberId) -> None:
        """A stream ended: the next `dispatch` leases its prompts to other members."""
        self._ledger.rollout_lost(member)
        self._batch_ready.set()

    def dispatch(self) -> None:
        """Lease admitted prompts to eligible members that have credit."""
        for member, lease in self._ledger.dispatch(self._eligible(), time.monotonic()):
            self._send(member, lease)
        self._metrics.prompts(self._ledger)
        self._set_timer()

    def close(self) -> None:
        """Stop expiring leases."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- inside --------------------------------------------------------------------------------

    def _progressed(self, member: MemberId, message: GenerationProgress) -> None:
        now = time.monotonic()
        for report in message.reports:
            if not self._ledger.report_progress(report, member, now):
                self._metrics.refused("late_report")
                self._send(member, PromptLeaseRevoked(report.lease_id))

    def _set_timer(self) -> None:
        # A timer that is set is early enough: deadlines only move later.
        due = self._ledger.next_deadline() if self._timer is None else None
        if due is not None:
            delay = max(0.0, due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for member, lease in self._ledger.expire(time.monotonic()):
            self._send(member, PromptLeaseRevoked(lease))
        self._batch_ready.set()
        self.dispatch()
