"""What the trainer says about whether training gets anywhere, for the operator."""

import math
from dataclasses import dataclass
from enum import StrEnum


class LearningState(StrEnum):
    """Whether a policy learns; all but the first two say why it stands still."""

    LEARNING = "Learning"
    CONVERGED = "Converged"  # rewards are alike, near the highest that the job has seen
    REWARDS_ALIKE = "RewardsAlike"  # no sample was better than another one of its prompt
    RESPONSES_CUT_OFF = "ResponsesCutOff"  # at the limit of tokens, and rewards do not grow
    MISMATCH_GROWS = "MismatchGrows"  # between the rollouts' probabilities and the trainer's
    PROMPT_REPEATED = "PromptRepeated"  # all samples answer one prompt


@dataclass(frozen=True, slots=True)
class LearningReport:
    """What was seen from `first_step` to `last_step`; another state alone brings another report.

    `low` and `high`: the lowest and the highest reward of a sample, with MISMATCH_GROWS the
    mismatch (k3, nats a token) at the job's start and now. `share`: of responses that were cut off.
    ValueError says what is wrong.
    """

    state: LearningState
    first_step: int
    last_step: int
    low: float = 0.0
    high: float = 0.0
    share: float = 0.0

    def __post_init__(self) -> None:
        """Of what arrives, too: the operator writes these numbers into messages."""
        if not 0 <= self.first_step <= self.last_step:
            raise ValueError("steps must be 0 or more, the first not after the last")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and 0 <= self.share <= 1):
            raise ValueError("low and high must be finite, share from 0 to 1")
