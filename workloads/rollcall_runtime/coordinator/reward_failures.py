"""What the coordinator does about samples whose reward function, or environment, failed."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.prompts.reward_error_share import RewardErrorShare
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Completion, PromptLease
from rollcall_protocol.wire.reward_errors import SHOWN_TOKENS, RewardError, RewardFailure
from rollcall_runtime.coordinator.metrics import CoordinatorMetrics
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

FIELD, ENVIRONMENT = "spec.reward.function", "spec.environment"
QUIET = 1000  # samples scored without it, after which an error counts as over,
QUIET_SECONDS = 300.0  # if this has passed, too: a fast job scores as many in a few seconds


class RewardFailures:
    """Counts reward errors, and decides what becomes of their samples and of the job.

    `shown` is the error that users see: the first of its kind and place, so that a message does not
    change with each sample, and how often it has happened, by powers of ten. Another one is shown
    when that has not happened in QUIET samples and QUIET_SECONDS; `changed` is called each time.
    """

    def __init__(
        self,
        config: JobConfig,
        metrics: CoordinatorMetrics,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._function = config.reward_function or "spec.reward.parts"
        self._environment = config.environment.shown if config.environment else self._function
        self._settings = config.reward_errors
        self._metrics, self._changed, self._clock = metrics, changed, clock
        self._share = RewardErrorShare()
        self._newest: RewardFailure | None = None
        self._since_shown = 0  # samples
        self._last_shown, self._times = 0.0, 0
        self.shown: RewardFailure | None = None

    def connected(self, member: MemberId) -> None:
        """A rollout may score samples from now on."""
        self._share.connected(member.pod_uid)

    def disconnected(self, member: MemberId) -> None:
        """A rollout is gone."""
        self._share.disconnected(member.pod_uid)

    def count(self, completion: Completion, lease: PromptLease) -> bool:
        """Count the samples of a completion of `lease`; whether they can be trained on."""
        zero = self._settings.on_error == "Zero"
        errors = completion.reward_errors if zero else completion.reward_errors[:1]
        # Unless errors are zeros, the samples after the first error were not scored.
        scored = errors[0].sample + 1 if errors and not zero else len(completion.samples)
        self._share.count(completion.member.pod_uid, scored=scored, failed=len(errors))
        self._since_shown += scored
        for error in errors:
            self._record(error, lease, completion.member)
        if self._is_over():
            log.info("the error of rewards is over, after %d samples that had it", self._times)
            self._show(None)
        return zero or not errors

    def raise_if_too_many(self) -> None:
        """SpecError, which ends the job, if the job's settings allow no more errors."""
        failure = self._newest
        if failure is None:
            return
        field = ENVIRONMENT if failure.error.environment else FIELD
        if self._settings.on_error == "Fail" and self._share.confirmed():
            raise SpecError(field, f"{failure.message}; spec.reward.onError is Fail")
        most = self._settings.max_share
        if self._share.exceeds(most):
            failed, scored = self._share.counted()
            raise SpecError(
                field,
                f"{failed} of the last {scored} samples have no usable reward, more than "
                f"spec.reward.maxErrorShare ({most:g}) allows; the last: {failure.message}",
            )

    def _record(self, error: RewardError, lease: PromptLease, member: MemberId) -> None:
        self._metrics.reward_failed(error.kind)
        tokens = lease.tokens[:SHOWN_TOKENS]
        function = self._environment if error.environment else self._function
        failure = self._newest = RewardFailure(function, error, lease.prompt, tokens)
        if self.shown is None or self._is_over():
            log.warning("a sample of pod %s has no reward: %s", member.pod_uid, failure.message)
            self._show(failure)
        elif _is_alike(self.shown.error, error):
            self._since_shown, self._last_shown = 0, self._clock()
            self._times += 1
            if self._times == 10 * self.shown.times:
                self.shown = replace(self.shown, times=self._times)
                self._changed()

    def _is_over(self) -> bool:
        quiet = self._clock() - self._last_shown >= QUIET_SECONDS
        return self.shown is not None and self._since_shown >= QUIET and quiet

    def _show(self, failure: RewardFailure | None) -> None:
        self.shown, self._since_shown = failure, 0
        self._last_shown, self._times = self._clock(), 1
        self._changed()


def _is_alike(one: RewardError, other: RewardError) -> bool:
    return (one.kind, one.place) == (other.kind, other.place)
