"""A reward function that is called in the test's own process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.tasks import reverse
from rollcall_runtime.tasks.reward_process import Score


class FunctionScorer:
    """`function` returns a reward or an error; like a reward process it may stop at an error."""

    def __init__(self, function: Callable[..., Score], *, stop_at_error: bool = True) -> None:
        self._function, self._stop_at_error = function, stop_at_error
        self.environment_rewards: list[float] = []  # of the last samples

    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        self.environment_rewards = list(environment_rewards)
        scores: list[Score] = []
        for response in responses:
            scores.append(self._function(prompt, response, row))
            if self._stop_at_error and isinstance(scores[-1], RewardError):
                break
        return scores


REVERSE = FunctionScorer(lambda prompt, response, _: reverse.reward(prompt, response))
