"""What a rollout may say about samples without a usable reward."""

from rollcall_protocol.wire.messages import Completion
from rollcall_protocol.wire.reward_errors import MAX_TEXT, RewardError

_LONGEST_FILE = 10**7  # lines


def reward_errors_problem(completion: Completion) -> str | None:
    """The first thing that is wrong with the reward errors of a completion; None if nothing is.

    At most one error for each sample, in the order of the samples, with texts of bounded length.
    """
    previous = -1
    for error in completion.reward_errors:
        if not previous < error.sample < len(completion.samples):
            return f"a reward error is about sample {error.sample} after one about {previous}"
        if not all(_is_bounded(text) for text in (error.value, error.file)):
            return f"the reward error of sample {error.sample} has a text that cannot be shown"
        if not _is_line(error):
            return f"the reward error of sample {error.sample} names a line that cannot be"
        previous = error.sample
    return None


def _is_bounded(text: str) -> bool:
    return len(text) <= MAX_TEXT and text.isprintable()


def _is_line(error: RewardError) -> bool:
    return 0 <= error.line <= _LONGEST_FILE
