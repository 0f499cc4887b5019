"""Whether reward function and environment give usable rewards."""

from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.training import RewardSpec
from rollcall_operator.plan.status.condition_state import ConditionState
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.reward_errors import RewardErrorKind

_REASONS = {
    RewardErrorKind.RAISED: Reason.REWARD_RAISED,
    RewardErrorKind.NOT_FINITE: Reason.REWARD_NOT_FINITE,
    RewardErrorKind.NOT_A_NUMBER: Reason.REWARD_NOT_A_NUMBER,
    RewardErrorKind.TOO_LARGE: Reason.REWARD_TOO_LARGE,
    RewardErrorKind.TIMED_OUT: Reason.REWARD_TIMED_OUT,
    RewardErrorKind.PROCESS_DIED: Reason.REWARD_PROCESS_DIED,
    RewardErrorKind.BAD_ANSWER: Reason.ENVIRONMENT_FAILED,
}
_OUTCOMES = {
    "Reject": "the prompts of such samples are not trained on",
    "Zero": "such samples get the reward 0",
    "Fail": "the job ends as soon as two rollouts report an error, or the only one",
}


def rewards_usable(reward: RewardSpec | None, snapshot: JobSnapshot | None) -> list[ConditionState]:
    """The condition RewardsUsable; without a report of the coordinator it stays as it was."""
    if snapshot is None or reward is None:
        return []
    kind, failure = JobCondition.REWARDS_USABLE, snapshot.reward_failure
    progress = snapshot.progress
    if failure is None and progress.rollout_reward is None and not progress.step:
        return [ConditionState(kind, None, Reason.STARTING, "no sample has a reward yet")]
    if failure is None:
        text = "the reward function gives usable rewards"
        return [ConditionState(kind, True, Reason.REWARDS_USABLE, text)]
    text = (
        f"{failure.message}. spec.reward.onError is {reward.on_error}: {_OUTCOMES[reward.on_error]}"
    )
    error = failure.error
    reason = Reason.ENVIRONMENT_FAILED if error.environment else _REASONS[error.kind]
    return [ConditionState(kind, False, reason, text)]
