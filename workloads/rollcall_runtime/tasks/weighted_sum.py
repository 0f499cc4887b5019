"""A reward that is the weighted sum of several functions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import RewardPart
from rollcall_protocol.wire.reward_errors import kind_of_number
from rollcall_runtime.tasks.reward_function import RewardFunction, UnusableRewardError, load_reward


class WeightedSum:
    """Adds the numbers of its parts, each times its weight.

    `numbers` are those of the last call by the parts' names, without the weights.
    """

    def __init__(self, parts: Sequence[tuple[RewardPart, RewardFunction]]) -> None:
        self._parts = tuple(parts)
        self.file, self.line = "", 0
        self.numbers: dict[str, float] = {}

    def __call__(
        self,
        prompt: Sequence[int],
        response: Sequence[int],
        row: Mapping[str, Any],
        environment_reward: float = 0.0,
        /,
    ) -> float:
        """The sum; UnusableRewardError names the part that has no usable number."""
        self.numbers, total = {}, 0.0
        for part, function in self._parts:
            try:
                self.numbers[part.name] = function(prompt, response, row, environment_reward)
                total += part.weight * self.numbers[part.name]
            except UnusableRewardError as error:
                text = f"part {part.name}: {error.value}"
                raise UnusableRewardError(error.kind, text, error.file, error.line) from error
        kind = kind_of_number(total)
        if kind is not None:
            raise UnusableRewardError(kind, f"a sum of {total:g}", "", 0)
        return total


def load_sum(parts: Sequence[RewardPart], *, directory: Path | None) -> WeightedSum:
    """The sum of `parts`; SpecError names the part that cannot be loaded."""
    fields = (f"spec.reward.parts[{index}]" for index in range(len(parts)))
    return WeightedSum(
        [
            (p, load_reward(p.function, p.config, directory=directory, of=field))
            for p, field in zip(parts, fields, strict=True)
        ]
    )
