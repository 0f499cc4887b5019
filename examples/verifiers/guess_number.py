"""An environment of `verifiers` of several turns: find a digit in three guesses."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import verifiers.v1 as vf

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GuessNumber", "GuessNumberEnv"]

TASKS, SEED, GUESSES = 64, 0, 3
QUESTION = "Guess my digit. Answer with one digit."


class Digit(vf.TaskData):  # type: ignore[misc]
    """The digit to find."""

    digit: int


def guess_in(reply: str) -> int | None:
    """The first digit of a reply."""
    found = re.search(r"[0-9]", reply)
    return int(found[0]) if found else None


def hint(guess: int | None, digit: int) -> str:
    """What the model reads about its guess; "" if it is right."""
    if guess is None:
        return "A digit!"
    return "" if guess == digit else "Higher." if guess < digit else "Lower."


class FindDigit(vf.Task[Digit]):  # type: ignore[misc]
    """One digit to find. The reward is the sum of both functions."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def found(self, trace: Any) -> float:
        """1 for the digit, 0.2 less for each guess before it."""
        guesses = [guess_in(message.content or "") for message in trace.assistant_messages]
        if self.data.digit in guesses:
            return 1.0 - 0.2 * guesses.index(self.data.digit)
        return 0.0

    @vf.reward(weight=0.1)  # type: ignore[untyped-decorator]
    async def digits(self, trace: Any) -> float:
        """The share of what the model said that is digits."""
        said = "".join(message.content or "" for message in trace.assistant_messages)
        return sum(map(str.isdigit, said)) / max(1, len(said))


class GuessNumber(vf.Taskset[FindDigit, vf.TasksetConfig]):  # type: ignore[misc]
    """Digits that a seed gives."""

    def load(self) -> Iterator[FindDigit]:
        """All tasks, the same in each run."""
        digits = random.Random(SEED)
        for number in range(TASKS):
            data = Digit(name=f"digit-{number}", digit=digits.randrange(10))
            yield FindDigit(data, self.config.task)


class GuessNumberEnv(vf.Env[vf.SingleAgentEnvConfig]):  # type: ignore[misc]
    """Asks, and answers each guess with a hint."""

    async def run(self, task: Any, agents: Any) -> None:
        """One rollout."""
        async with agents.agent.interaction(task) as chat:
            said = QUESTION
            for _ in range(GUESSES):
                segment = await chat.turn(said)
                said = hint(guess_in(segment.last_reply), task.data.digit)
                if segment.terminated or not said:
                    return
