"""Samples whose reward function gave no usable reward."""

import math
from dataclasses import dataclass
from enum import StrEnum

from rollcall_protocol.wire.printable_text import one_line

MAX_REWARD = 1e6  # its square is far below what float32 holds
MAX_TEXT = 200  # characters of each text in a RewardError
SHOWN_TOKENS = 32  # of a prompt


class RewardErrorKind(StrEnum):
    """Why a sample has no usable reward."""

    RAISED = "raised"
    NOT_FINITE = "not_finite"
    NOT_A_NUMBER = "not_a_number"
    TOO_LARGE = "too_large"
    TIMED_OUT = "timed_out"
    PROCESS_DIED = "process_died"
    BAD_ANSWER = "bad_answer"  # of an environment


@dataclass(frozen=True, slots=True)
class RewardError:
    """What a rollout says of one sample of a completion that has no usable reward.

    `value` is what the function raised or returned, or how its process ended. `file` and `line` are
    where it raised, otherwise where it is defined; empty and 0 if that is not known. Texts are
    printable and have at most MAX_TEXT characters. `environment`: the job's environment did that,
    and not the reward function.
    """

    sample: int
    kind: RewardErrorKind
    value: str
    file: str = ""
    line: int = 0
    environment: bool = False

    @property
    def place(self) -> str:
        """`file:line`, or an empty string."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True)
class RewardFailure:
    """An error of a job's reward function or environment, with the prompt that it belongs to.

    `function` is the name of either. `prompt` is the number of the prompt, `tokens` its first
    SHOWN_TOKENS tokens. `times`: in so many samples at least.
    """

    function: str
    error: RewardError
    prompt: int
    tokens: tuple[int, ...]
    times: int = 1

    @property
    def message(self) -> str:
        """What happened, in one line."""
        error = self.error
        text = f"{self.function} {_HAPPENED[error.kind].format(value=error.value)}"
        place = f" ({error.place})" if error.place else ""
        tokens = " ".join(map(str, self.tokens))
        more = " ..." if len(self.tokens) == SHOWN_TOKENS else ""
        often = f", and in {self.times} samples or more" if self.times > 1 else ""
        return f"{text}{place}, for prompt {self.prompt} (tokens {tokens}{more}){often}"


_HAPPENED = {
    RewardErrorKind.RAISED: "raised {value}",
    RewardErrorKind.NOT_FINITE: "returned {value}, which is not finite",
    RewardErrorKind.NOT_A_NUMBER: "returned {value}, which is not a number",
    RewardErrorKind.TOO_LARGE: f"returned {{value}}, which is not within {MAX_REWARD:g}",
    RewardErrorKind.TIMED_OUT: "did not return within {value}",
    RewardErrorKind.PROCESS_DIED: "ended its process: {value}",
    RewardErrorKind.BAD_ANSWER: "gave no usable answer: {value}",
}


def printable(text: str) -> str:
    """At most MAX_TEXT characters of `text`, on one line."""
    line = one_line(text)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 3]}..."


def kind_of_number(value: float) -> RewardErrorKind | None:
    """What is wrong with a number as a reward; None if it is usable."""
    if not math.isfinite(value):
        return RewardErrorKind.NOT_FINITE
    return RewardErrorKind.TOO_LARGE if abs(value) > MAX_REWARD else None
