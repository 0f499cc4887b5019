"""Environment of the task "add two digits with a calculator".

A prompt is BOS, two digits, SEP. A turn that begins with SEP asks the calculator, which gives the
sum; any other turn answers with its first token, and ends the response.
"""

from collections.abc import Sequence
from typing import Any

SEP = 1
FIRST_DIGIT = 3  # the token number of the digit 0


class Calculator:
    """One object for each sample."""

    def __init__(self, *, reward_of_call: float = 0.2) -> None:
        self._reward_of_call = reward_of_call
        self._sum = 0
        self._asked = False

    def reset(self, row: dict[str, Any]) -> None:
        """Begin with a prompt's row of the data; nothing is added to the prompt."""
        self._sum = row["first"] + row["second"]

    def step(self, response: Sequence[int]) -> tuple[list[int] | None, float, bool]:
        """Answer a turn: observation, reward, and whether the response ends."""
        digit = FIRST_DIGIT + self._sum
        if response[0] == SEP and not self._asked:
            self._asked = True
            return [digit], self._reward_of_call, False
        return None, (1 - self._reward_of_call) * (response[0] == digit), True
