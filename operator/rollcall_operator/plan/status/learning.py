"""Whether training gets anywhere, as the trainer judges it by its steps."""

from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.plan.status.condition_state import ConditionState
from rollcall_protocol.wire.job_snapshot import JobSnapshot
from rollcall_protocol.wire.learning import LearningReport, LearningState

_REASONS = {
    LearningState.LEARNING: Reason.LEARNING,
    LearningState.CONVERGED: Reason.CONVERGED,
    LearningState.REWARDS_ALIKE: Reason.REWARDS_ALIKE,
    LearningState.RESPONSES_CUT_OFF: Reason.RESPONSES_CUT_OFF,
    LearningState.MISMATCH_GROWS: Reason.MISMATCH_GROWS,
    LearningState.PROMPT_REPEATED: Reason.PROMPT_REPEATED,
}
_SEEN = {
    LearningState.LEARNING: "no sign of a standstill from step {first} to {last}",
    LearningState.CONVERGED: (
        "from step {first} to {last} no sample was better than another one of its prompt, and "
        "rewards ({rewards}) are near the highest that the job has seen: it has "
        "learnt what these rewards can teach. If that is enough, end the job, with a lower "
        "spec.algorithm.maxSteps for the next one"
    ),
    LearningState.REWARDS_ALIKE: (
        "from step {first} to {last} no sample was better than another one of its prompt (rewards "
        "{rewards}), so that no step has changed the policy towards higher rewards. "
        "See whether the reward function looks at the response. If rewards are low, give partial "
        "rewards, easier prompts or a larger spec.algorithm.groupSize; if they are high, harder "
        "prompts"
    ),
    LearningState.RESPONSES_CUT_OFF: (
        "from step {first} to {last} {share:.0%} of the responses were cut off at their most "
        "tokens, and rewards ({rewards}) did not grow. Raise "
        "spec.algorithm.sampling.maxTokens, or engine.config.maxTokens of the pools; or have the "
        "prompt ask for short answers that end by themselves"
    ),
    LearningState.MISMATCH_GROWS: (
        "rollouts and trainer give ever more different probabilities to the same tokens: "
        "actor/mismatch_kl was {low:.3g} in the job's first steps and {high:.3g} (medians, nats a "
        "token) from step {first} to {last}. Lower spec.algorithm.optimizer.learningRate, have "
        "both compute in the same precision, or set correction: masked in spec.algorithm.settings"
    ),
    LearningState.PROMPT_REPEATED: (
        "from step {first} to {last} all samples answered one and the same prompt. See whether "
        "the data set has more rows (spec.data.prompts), and whether column and template of its "
        "source in spec.data.sources name what differs between them"
    ),
}


def learning(snapshot: JobSnapshot | None) -> list[ConditionState]:
    """The condition Learning; it stays as it was without a report, or before there are enough
    steps, and supervised jobs have none.
    """
    report = None if snapshot is None else snapshot.progress.learning
    return [] if report is None else [_condition(report)]


def _range(report: LearningReport) -> str:
    low, high = f"{report.low:.4g}", f"{report.high:.4g}"
    return f"all {low}" if low == high else f"{low} to {high}"


def _condition(report: LearningReport) -> ConditionState:
    learns = report.state in {LearningState.LEARNING, LearningState.CONVERGED}
    text = _SEEN[report.state].format(
        first=report.first_step,
        last=report.last_step,
        rewards=_range(report),
        low=report.low,
        high=report.high,
        share=report.share,
    )
    return ConditionState(JobCondition.LEARNING, learns, _REASONS[report.state], text)
